"""Response bodies, as the OpenAI API has them; the streams' chunks are written by `stream`, by the same shapes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """The body of every answer with a status from 400 on."""

    error: ErrorDetail


class PromptTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int
    """Found in the prefix cache and not computed."""


class Usage(BaseModel):
    """Token counts. Each prompt counts once; an id that ended an output counts although it has no text."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(BaseModel):
    """One entry a token, also for those without text; logprobs are the model's own, before any sampling option."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One output."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str


class CompletionResponse(BaseModel):
    """`POST /v1/completions`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ReplyMessage(BaseModel):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class TopLogprob(BaseModel):
    """A token that might have been drawn."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token that was drawn."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """One entry a token, also for those without text; logprobs are the model's own, before any sampling option."""

    content: list[TokenLogprob]
    refusal: None = None


class ChatChoice(BaseModel):
    """One reply."""

    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str


class ChatResponse(BaseModel):
    """`POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ModelCard(BaseModel):
    """A model that can be asked."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["lockstep"] = "lockstep"
    max_model_len: int


class ModelList(BaseModel):
    """`GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeResponse(BaseModel):
    """`POST /tokenize`."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeResponse(BaseModel):
    """`POST /detokenize`."""

    prompt: str


class HealthResponse(BaseModel):
    """`GET /health` and `GET /ready`."""

    status: Literal["ok"] = "ok"


class DrainResponse(BaseModel):
    """`/drain`."""

    draining: bool
    in_flight: int
