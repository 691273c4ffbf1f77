"""Answers in one piece: written when all choices have ended."""

from __future__ import annotations

from typing import Any

from starlette.types import Send

from lockstep_worker.frontend.flight.engine import Engine
from lockstep_worker.frontend.flight.generation import Choice, Generation
from lockstep_worker.frontend.http.logprobs import LogprobsWriter
from lockstep_worker.frontend.http.respond import Responder, send_error, send_json
from lockstep_worker.frontend.http.stream import count_usage
from lockstep_worker.frontend.schema.responses import (
    ChatChoice,
    ChatResponse,
    CompletionChoice,
    CompletionResponse,
    ReplyMessage,
    Usage,
)


class WholeAnswer(Responder):
    """Answers one generation.

    Args:
        engine: has opened the generation.
        generation: what is answered.
        envelope: `id`, `created` and `model`.
        is_chat: whether choices are messages.
        logprobs: writes logprobs, where they are asked for.
    """

    def __init__(
        self,
        engine: Engine,
        generation: Generation,
        envelope: dict[str, Any],
        *,
        is_chat: bool,
        logprobs: LogprobsWriter,
    ) -> None:
        super().__init__(engine, generation)
        self._envelope = envelope
        self._is_chat = is_chat
        self._logprobs = logprobs

    async def _write(self, send: Send) -> None:
        generation = self._generation
        await generation.changed()
        if generation.error is not None:
            await send_error(send, generation.error)
            return
        response = self._chat_response() if self._is_chat else self._completion_response()
        await send_json(send, 200, response.model_dump_json().encode())

    def _completion_response(self) -> CompletionResponse:
        choices = [
            CompletionChoice(
                index=choice.index,
                text=choice.take_text(),
                logprobs=self._logprobs.for_completion(choice),
                finish_reason=_reason(choice),
            )
            for choice in self._generation.choices
        ]
        return CompletionResponse(choices=choices, usage=self._usage(), **self._envelope)

    def _chat_response(self) -> ChatResponse:
        choices = [
            ChatChoice(
                index=choice.index,
                message=ReplyMessage(content=choice.take_text()),
                logprobs=self._logprobs.for_chat(choice),
                finish_reason=_reason(choice),
            )
            for choice in self._generation.choices
        ]
        return ChatResponse(choices=choices, usage=self._usage(), **self._envelope)

    def _usage(self) -> Usage:
        return Usage(**count_usage(self._generation))


def _reason(choice: Choice) -> str:
    return choice.finish_reason or "stop"  # a client that is gone reads neither
