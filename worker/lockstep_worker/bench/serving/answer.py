"""Reading a streamed answer out of the bytes of its connection: head, HTTP's framing, events. No sockets, no clock.

Each event is stamped with the time at which its bytes came, and only the one that holds the usage is parsed: a client
that parsed every event would measure itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Protocol

from lockstep_worker.bench.serving.timing import Timeline

_DONE = b"data: [DONE]"
_FAULT = b'data: {"error"'
_WITHOUT_CHOICES = (b'"choices":[]', b'"choices": []')


class Answer:
    """One answer, as far as it has come.

    Args:
        started_s: when its request was sent.
        cut_s: when nothing more is wanted of it.
    """

    def __init__(self, started_s: float, cut_s: float = math.inf) -> None:
        self._started_s, self._cut_s = started_s, cut_s
        self._head: bytes | None = b""
        self._status = 0
        self._body: _Body = _Sized(0)
        self._rest = b""
        self._stamps: list[float] = []
        self._usage: dict[str, Any] | None = None
        self._is_done = False

    def feed(self, data: bytes, now: float) -> Timeline | None:
        """Take the next bytes, which came at `now`; returns the timeline once there is nothing more to read.

        Raises:
            ValueError, LookupError: this is no HTTP.
        """
        if self._head is not None:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return None
            self._open(head)
        for part in self._body.feed(data):
            self._rest += part
            if self._status == 200 and (fault := self._read_events(now)) is not None:
                return Timeline(self._started_s, now, error=fault)
        if self._body.is_ended:
            return self._finish(now)
        if now >= self._cut_s and self._status == 200:
            return Timeline(self._started_s, now, tuple(self._stamps), is_cut=True)
        return None

    def _open(self, head: bytes) -> None:
        self._head = None
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.lower(): value.strip().lower() for name, _, value in pairs}
        self._status = int(first.split(" ", 2)[1])
        is_chunked = headers.get("transfer-encoding") == "chunked"
        self._body = _Chunked() if is_chunked else _Sized(int(headers["content-length"]))

    def _read_events(self, now: float) -> str | None:
        """Stamp the events that are complete; returns the error that one of them tells of."""
        if b"\n\n" not in self._rest:
            return None
        *events, self._rest = self._rest.split(b"\n\n")
        for event in events:
            if event.startswith(_DONE):
                self._is_done = True
            elif event.startswith(_FAULT):
                return event[6:300].decode(errors="replace")
            elif any(mark in event for mark in _WITHOUT_CHOICES):
                self._usage = json.loads(event[6:])["usage"]
            else:
                self._stamps.append(now)
        return None

    def _finish(self, now: float) -> Timeline:
        usage, start = self._usage, self._started_s
        if self._status != 200:
            return Timeline(start, now, error=f"HTTP {self._status}: {self._rest.decode(errors='replace')[:300]}")
        if not self._is_done:
            return Timeline(start, now, error="the stream ended early")
        if usage is None or not self._stamps:
            return Timeline(start, now, error="the stream has no text or no usage")
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        stamps = tuple(self._stamps)
        return Timeline(start, now, stamps, usage["prompt_tokens"], usage["completion_tokens"], cached_tokens=cached)


class _Body(Protocol):
    """Takes HTTP's framing off."""

    is_ended: bool

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what of the body is complete."""


class _Sized:
    """A body whose length stands in its head."""

    def __init__(self, length: int) -> None:
        self._missing = length
        self.is_ended = not length

    def feed(self, data: bytes) -> Iterator[bytes]:
        """See `_Body`."""
        self._missing -= len(data)
        self.is_ended = self._missing <= 0
        yield data


class _Chunked:
    """A body in chunks, however the bytes are cut."""

    def __init__(self) -> None:
        self._rest = b""
        self.is_ended = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the contents of all chunks that are complete."""
        data = self._rest + data
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            size = int(data[at:end].split(b";")[0], 16)
            after = end + 2 + size + 2
            if after > len(data):
                break
            at = after
            if not size:
                self.is_ended = True
                break
            yield data[end + 2 : after - 2]
        self._rest = data[at:]
