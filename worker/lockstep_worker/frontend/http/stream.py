"""Streams: server-sent events, written as bytes from templates that are built once a request.

What came for a connection since its last write leaves in one write, one event a choice. The first write waits for the
first text, so that a request that fails before it still gets its status.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from starlette.types import Send

from lockstep_worker.frontend.flight.engine import Engine
from lockstep_worker.frontend.flight.generation import Choice, Generation
from lockstep_worker.frontend.http.logprobs import LogprobsWriter
from lockstep_worker.frontend.http.respond import Responder, send_error

_encode = msgspec.json.encode
_TEXT = "\0"
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
DONE = b"data: [DONE]\n\n"


class EventTemplates:
    """The events of one stream.

    Args:
        envelope: `id`, `object`, `created` and `model` of every chunk.
        num_choices: how many choices take part.
        is_chat: whether text is a `delta` with its own opening event.
        includes_usage: whether every chunk has `usage`, and a last one holds the counts.
        logprobs: writes logprobs, where they are asked for.
    """

    def __init__(
        self,
        envelope: dict[str, Any],
        num_choices: int,
        *,
        is_chat: bool,
        includes_usage: bool,
        logprobs: LogprobsWriter,
    ) -> None:
        self._envelope = envelope
        self._is_chat = is_chat
        self._usage: dict[str, Any] = {"usage": None} if includes_usage else {}
        self._includes_usage = includes_usage
        self._logprobs = logprobs
        self._texts = [self._split(index) for index in range(num_choices)]

    def opening(self) -> bytes:
        """Return what comes before all text."""
        if not self._is_chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return b"".join(self._event(index, {"delta": delta}, None) for index in range(len(self._texts)))

    def text(self, choice: Choice) -> bytes:
        """Return an event with the text that one choice has."""
        if choice.params.logprobs >= 0:
            return self._with_logprobs(choice)
        before, after = self._texts[choice.index]
        return before + _encode(choice.take_text()) + after

    def finish(self, choice: Choice) -> bytes:
        """Return the last event of one choice."""
        return self._with_logprobs(choice)

    def ending(self, generation: Generation) -> bytes:
        """Return what comes after all choices."""
        if not self._includes_usage:
            return DONE
        return _line({**self._envelope, "choices": [], "usage": count_usage(generation)}) + DONE

    def _with_logprobs(self, choice: Choice) -> bytes:
        text = choice.take_text()
        content = {"delta": {"content": text} if text else {}} if self._is_chat else {"text": text}
        write = self._logprobs.for_chat if self._is_chat else self._logprobs.for_completion
        logprobs = write(choice)
        return self._event(
            choice.index, content, choice.finish_reason, None if logprobs is None else logprobs.model_dump()
        )

    def _event(
        self, index: int, content: dict[str, Any], reason: str | None, logprobs: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}
        return _line({**self._envelope, "choices": [choice], **self._usage})

    def _split(self, index: int) -> tuple[bytes, bytes]:
        content = {"delta": {"content": _TEXT}} if self._is_chat else {"text": _TEXT}
        before, _, after = self._event(index, content, None).partition(_encode(_TEXT))
        return before, after


class EventStream(Responder):
    """Streams one generation.

    Args:
        engine: has opened the generation.
        generation: what is streamed.
        templates: its events.
    """

    def __init__(self, engine: Engine, generation: Generation, templates: EventTemplates) -> None:
        super().__init__(engine, generation)
        self._templates = templates
        self._unfinished = set(generation.choices)

    async def _write(self, send: Send) -> None:
        generation = self._generation
        await generation.changed()
        if generation.error is not None and not any(choice.has_text for choice in generation.choices):
            await send_error(send, generation.error)
            return
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        body = self._templates.opening()
        while generation.outcome is None:
            await send({"type": "http.response.body", "body": body + b"".join(self._events()), "more_body": True})
            await generation.changed()
            body = b""
        body += b"".join(self._events()) + self._ending()
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _events(self) -> Iterator[bytes]:
        for choice in sorted(self._unfinished, key=_index) if len(self._unfinished) > 1 else tuple(self._unfinished):
            if choice.finish_reason is not None:
                self._unfinished.remove(choice)
                yield self._templates.finish(choice)
            elif choice.has_text:
                yield self._templates.text(choice)

    def _ending(self) -> bytes:
        error = self._generation.error
        return self._templates.ending(self._generation) if error is None else b"data: " + error.body() + b"\n\n"


def count_usage(generation: Generation) -> dict[str, Any]:
    """Return the counts of a request, the same streamed or not."""
    prompt, completion = generation.prompt_tokens, generation.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
    }


def _index(choice: Choice) -> int:
    return choice.index


def _line(event: dict[str, Any]) -> bytes:
    return b"data: " + _encode(event) + b"\n\n"
