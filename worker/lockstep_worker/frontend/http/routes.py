"""The OpenAI routes and the two that go with them. Each checks, prepares, opens, and hands over to a responder."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request
from pydantic import WithJsonSchema
from starlette.responses import Response

from lockstep_worker.frontend.flight.generation import Generation
from lockstep_worker.frontend.http.answer import WholeAnswer
from lockstep_worker.frontend.http.logprobs import LogprobsWriter
from lockstep_worker.frontend.http.service import Service
from lockstep_worker.frontend.http.stream import EventStream, EventTemplates
from lockstep_worker.frontend.schema.responses import (
    ChatResponse,
    CompletionResponse,
    DetokenizeResponse,
    ErrorResponse,
    ModelCard,
    ModelList,
    TokenizeResponse,
)
from lockstep_worker.frontend.schema.schemas import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    TokenizeBody,
)

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse} for status in (400, 401, 404, 413, 429, 503, 504)
}
_EVENT = {
    "type": "object",
    "properties": {"data": {"type": "string", "description": "A chunk or an error as JSON; at the end [DONE]."}},
    "required": ["data"],
}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"itemSchema": _EVENT}}, "description": "Whole, or as a stream."}
}
router = APIRouter(responses=_ERRORS)


def service_of(request: Request) -> Service:
    """Return the app's parts."""
    service: Service = request.app.state.service
    return service


Parts = Annotated[Service, Depends(service_of)]
Timeout = Annotated[
    float | None,
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0}),
    Header(
        alias="X-Request-Timeout",
        gt=0,
        allow_inf_nan=False,
        description="Seconds from arrival to end, then 504 or, in a stream that has begun, an error event.",
    ),
]


@router.post("/v1/completions", response_model=CompletionResponse, responses=_STREAM)
async def create_completion(body: CompletionBody, service: Parts, timeout_s: Timeout = None) -> Response:
    """Continue one prompt or several."""
    service.check_model(body.model)
    service.check_open()
    generation = await service.preparation.prepare_completion(body)
    return _respond(service, generation, body, timeout_s, is_chat=False)


@router.post("/v1/chat/completions", response_model=ChatResponse, responses=_STREAM)
async def create_chat_completion(body: ChatBody, service: Parts, timeout_s: Timeout = None) -> Response:
    """Reply to a conversation."""
    service.check_model(body.model)
    service.check_open()
    generation = await service.preparation.prepare_chat(body)
    return _respond(service, generation, body, timeout_s, is_chat=True)


def _respond(
    service: Service, generation: Generation, body: GenerationBody, timeout_s: float | None, *, is_chat: bool
) -> Response:
    service.check_open()  # preparing may have taken a while
    service.engine.open(generation, timeout_s)
    envelope: dict[str, Any] = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(16)}",
        "created": int(time.time()),
        "model": service.settings.served_model_name,
    }
    logprobs = LogprobsWriter(service.tokenizer.piece)
    if not body.stream:
        return WholeAnswer(service.engine, generation, envelope, is_chat=is_chat, logprobs=logprobs)
    envelope["object"] = "chat.completion.chunk" if is_chat else "text_completion"
    templates = EventTemplates(
        envelope,
        len(generation.choices),
        is_chat=is_chat,
        includes_usage=body.includes_usage,
        logprobs=logprobs,
    )
    return EventStream(service.engine, generation, templates)


@router.get("/v1/models")
async def list_models(service: Parts) -> ModelList:
    """List the one model."""
    return ModelList(data=[_card(service)])


@router.get("/v1/models/{name:path}")
async def show_model(name: str, service: Parts) -> ModelCard:
    """Show the one model."""
    service.check_model(name)
    return _card(service)


@router.post("/tokenize")
async def tokenize(body: TokenizeBody, service: Parts) -> TokenizeResponse:
    """Return the ids of a text, or those that a conversation becomes."""
    service.check_model(body.model)
    special = body.add_special_tokens
    if body.messages is not None:
        conversation = body.conversation(body.messages)
        ids = await service.tokenizer.encode_chat(conversation, add_special_tokens=bool(special))
    else:
        [ids] = await service.tokenizer.encode([body.prompt or ""], add_special_tokens=special is not False)
    return TokenizeResponse(tokens=ids, count=len(ids), max_model_len=service.settings.max_model_len)


@router.post("/detokenize")
async def detokenize(body: DetokenizeBody, service: Parts) -> DetokenizeResponse:
    """Return the text of ids, special tokens included."""
    service.check_model(body.model)
    service.preparation.check_ids(body.tokens, "tokens")
    return DetokenizeResponse(prompt=await service.tokenizer.decode(body.tokens))


def _card(service: Service) -> ModelCard:
    return ModelCard(
        id=service.settings.served_model_name,
        created=service.started_s,
        max_model_len=service.settings.max_model_len,
    )
