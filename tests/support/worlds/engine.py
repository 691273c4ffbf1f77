"""A small engine at the other end of the frontend's link: it speaks the real wire and answers with scripted tokens."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np
import zmq

from lockstep_worker.errors import RequestError
from lockstep_worker.wire.messages import (
    Cancel,
    Drained,
    EngineDown,
    FinishCode,
    Inbound,
    Logprobs,
    NewRequest,
    Outbound,
    Progress,
    Refused,
    Shutdown,
    Started,
    Tokens,
)

LogprobEntry = tuple[float, list[int], list[float]]


def logprobs_for(token: int, count: int) -> LogprobEntry:
    """What the engine says of a token whose request asks: the token itself is the third best, exactly in binary."""
    ids = [token ^ 1, token ^ 2, token, *range(1, 30)][:count]
    return -1.0, ids, [-0.25, -0.5, -1.0, *(-2.0 - rank for rank in range(29))][:count]


def pack_logprobs(entries: dict[int, LogprobEntry]) -> Logprobs:
    """Write them as they travel, by the token's number in the message."""
    ids = [token for _, best, _ in entries.values() for token in best]
    values = [value for _, _, best in entries.values() for value in best]
    return Logprobs(
        np.array(list(entries), dtype="<i4").tobytes(),
        np.array([drawn for drawn, _, _ in entries.values()], dtype="<f4").tobytes(),
        np.array([len(best) for _, best, _ in entries.values()], dtype="u1").tobytes(),
        np.array(ids, dtype="<i4").tobytes(),
        np.array(values, dtype="<f4").tobytes(),
    )


Script = Callable[[NewRequest], Iterable[tuple[int, int]]]
"""What a request gets: (token, finish code) one by one; or it raises `RequestError`, and the request is refused."""


def say(ids: Iterable[int], code: int = FinishCode.LENGTH) -> Script:
    """Return a script that gives these ids and ends with the last of them."""
    tokens = list(ids)
    return lambda _request: [(token, 0) for token in tokens[:-1]] + [(tokens[-1], code)]


def refuse(message: str, field: str) -> Script:
    """Return a script that refuses every request."""

    def script(_request: NewRequest) -> Iterable[tuple[int, int]]:
        raise RequestError(message, field)

    return script


def say_forever(token: int) -> Script:
    """Return a script that never ends."""
    return lambda _request: itertools.repeat((token, 0))


class ScriptedEngine:
    """Rank 0 and, where a test wants them, its peers: one thread that steps every `step_s` seconds.

    Args:
        inbound: address that the frontend binds for requests.
        outbound: address that the frontend binds for tokens.
        script: what each request gets; may be replaced at any time.
        step_s: time of a step.
        is_silent: whether no progress is reported; may be changed at any time.
    """

    def __init__(
        self, inbound: str, outbound: str, script: Script, step_s: float = 0.002, *, is_silent: bool = False
    ) -> None:
        self.script = script
        self.step_s = step_s
        self.is_silent = is_silent
        self.tokens_a_step = 1
        """How many tokens each request gets in one message; one after another, as far as its script goes."""
        self.cached_tokens = 0
        """What each request is told to have found in the cache."""
        self.requests: list[NewRequest] = []
        self.cancelled: list[int] = []
        self.is_shut_down = False
        self._running: dict[int, Iterator[tuple[int, int]]] = {}
        self._wanted: dict[int, int] = {}
        self._context = zmq.Context()
        self._requests = self._context.socket(zmq.PULL)
        self._requests.connect(inbound)
        self._tokens = self._context.socket(zmq.PUSH)
        self._tokens.set_hwm(0)  # a frontend that is gone must not block it
        self._tokens.connect(outbound)
        self._outbox: deque[bytes] = deque()
        self._decoder: msgspec.msgpack.Decoder[Inbound] = msgspec.msgpack.Decoder(Inbound)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ScriptedEngine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    @property
    def running(self) -> list[int]:
        """Handles that are generating."""
        return list(self._running)

    def publish(self, message: Outbound) -> None:
        """Send a message of the test's own."""
        self.publish_bytes(msgspec.msgpack.encode(message))

    def publish_bytes(self, message: bytes) -> None:
        """Send bytes that may be no message at all."""
        self._outbox.append(message)

    def die(self, rank: int, reason: str, exit_code: int) -> None:
        """Tell the frontend that a rank is about to end the group."""
        self.publish(EngineDown(rank, reason, exit_code))

    def _run(self) -> None:
        next_progress_s = 0.0
        try:
            while not self._stop.is_set():
                if not self.is_silent and time.monotonic() >= next_progress_s:
                    self._send(Progress(0, len(self._running), 0, 1, 10))
                    next_progress_s = time.monotonic() + 0.2
                while self._outbox:
                    self._tokens.send(self._outbox.popleft())
                self._take()
                self._step()
        finally:
            self._context.destroy(linger=200)

    def _take(self) -> None:
        if not self._requests.poll(max(int(self.step_s * 1000), 1)):
            return
        while self._requests.poll(0):
            match self._decoder.decode(self._requests.recv()):
                case NewRequest() as request:
                    self._start(request)
                case Cancel(handle):
                    self.cancelled.append(handle)
                    self._running.pop(handle, None)
                case Shutdown():
                    self.is_shut_down = True
                    self._send(Drained(0))

    def _start(self, request: NewRequest) -> None:
        self.requests.append(request)
        try:
            steps = iter(self.script(request))
        except RequestError as error:
            self._send(Refused(request.handle, error.message, error.field))
            return
        self._wanted[request.handle] = request.params.logprobs
        if self.cached_tokens:
            self._send(Started([request.handle], [self.cached_tokens]))
        self._running[request.handle] = steps

    def _step(self) -> None:
        handles: list[int] = []
        tokens: list[int] = []
        codes: list[int] = []
        entries: dict[int, LogprobEntry] = {}
        for handle, token, code in self._draw():
            if self._wanted[handle] >= 0 and token >= 0:
                entries[len(handles)] = logprobs_for(token, self._wanted[handle])
            handles.append(handle)
            tokens.append(token)
            codes.append(code)
        if handles:
            logprobs = pack_logprobs(entries) if entries else None
            self._send(Tokens.pack(0, 0, handles, tokens, codes, logprobs))

    def _draw(self) -> Iterator[tuple[int, int, int]]:
        for handle, script in list(self._running.items()):
            for _ in range(self.tokens_a_step):
                token, code = next(script, (-1, FinishCode.CANCELLED))
                yield handle, token, code
                if code:
                    del self._running[handle]
                    break

    def _send(self, message: Outbound) -> None:
        self._tokens.send(msgspec.msgpack.encode(message))
