"""Request bodies, strictly: no field is ignored, no type is guessed.

Fields that others know and this server does not support are in `unsupported`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lockstep_worker.frontend.schema.faults import field_error
from lockstep_worker.frontend.schema.fields import (
    CONTENT_MESSAGE,
    MAX_INT32,
    MAX_MESSAGES,
    Count,
    LogitBias,
    Penalty,
    Prompt,
    Stop,
    TemplateArguments,
    Text,
    TokenIds,
    TopLogprobs,
    one_message,
)
from lockstep_worker.frontend.schema.unsupported import (
    UNSUPPORTED,
    UNSUPPORTED_IN_CHAT,
    UNSUPPORTED_IN_COMPLETIONS,
    UNSUPPORTED_IN_MESSAGES,
    NeutralValues,
    drop_neutral,
)
from lockstep_worker.frontend.text.chat import Conversation


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class StreamOptions(_Strict):
    """What a stream holds beside text."""

    include_usage: bool | None = None


class GenerationBody(_Strict):
    """What both ways to generate have in common."""

    unsupported: ClassVar[NeutralValues] = UNSUPPORTED
    default_tokens: ClassVar[int | None] = None
    """The longest output where the client names none; None is all that the context holds."""
    model: Text
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    n: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=-1, le=MAX_INT32, description="0 and -1 are off.")
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: float | None = Field(None, ge=0.1, le=10, allow_inf_nan=False)
    logit_bias: LogitBias | None = None
    priority: int | None = Field(None, ge=-MAX_INT32 - 1, le=MAX_INT32, description="Lower runs first; 0 if left out.")
    stop: Stop | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        return drop_neutral(data, cls.unsupported)

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options", "is allowed only when stream is true")
        return self

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with a chunk of counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        """The longest output that the client wants."""
        return self.max_tokens

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    unsupported = UNSUPPORTED | UNSUPPORTED_IN_COMPLETIONS
    default_tokens = 16
    prompt: Prompt
    max_tokens: Count | None = Field(None, description=f"{default_tokens} if left out, as at OpenAI.")
    echo: bool | None = None
    logprobs: TopLogprobs | None = None

    @model_validator(mode="after")
    def _no_logprobs_of_the_prompt(self) -> Self:
        if self.echo and self.logprobs is not None:
            raise field_error("logprobs", "together with echo is not supported by this server")
        return self

    @property
    def num_logprobs(self) -> int:
        """How many best tokens are wanted at each place; -1 when not even the drawn one's logprob is."""
        return -1 if self.logprobs is None else self.logprobs


class TextPart(_Strict):
    """A part of a message; others than text are not supported."""

    type: Literal["text"]
    text: Text


Content = Annotated[Text | list[TextPart], one_message(CONTENT_MESSAGE)]


class Message(_Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        return drop_neutral(data, UNSUPPORTED_IN_MESSAGES)

    def for_template(self) -> dict[str, Any]:
        """Return it as chat templates expect it, with text parts joined."""
        content = self.content
        text = "".join(part.text for part in content) if isinstance(content, list) else content
        return {"role": self.role, "content": "" if text is None else text}


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class _TemplateFields(_Strict):
    """How a conversation becomes text."""

    add_generation_prompt: bool | None = Field(None, description="True if left out.")
    continue_final_message: bool | None = Field(None, description="The output goes on with the last message.")
    chat_template_kwargs: TemplateArguments | None = None

    @model_validator(mode="after")
    def _one_ending(self) -> Self:
        if self.add_generation_prompt and self.continue_final_message:
            raise field_error("continue_final_message", "and add_generation_prompt cannot both be true")
        return self

    def conversation(self, messages: list[Message]) -> Conversation:
        """Return what the chat template gets."""
        goes_on = bool(self.continue_final_message)
        return Conversation(
            [message.for_template() for message in messages],
            add_generation_prompt=not goes_on and self.add_generation_prompt is not False,
            continue_final_message=goes_on,
            arguments=self.chat_template_kwargs or {},
        )


class ChatBody(GenerationBody, _TemplateFields):
    """`POST /v1/chat/completions`."""

    unsupported = UNSUPPORTED | UNSUPPORTED_IN_CHAT
    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise field_error("top_logprobs", "is allowed only when logprobs is true")
        return self

    @property
    def num_logprobs(self) -> int:
        """See `CompletionBody`."""
        return (self.top_logprobs or 0) if self.logprobs else -1

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if None not in {self.max_tokens, self.max_completion_tokens} and self.max_tokens != self.max_completion_tokens:
            raise field_error("max_completion_tokens", "and max_tokens differ; give one of them")
        return self

    @property
    def token_limit(self) -> int | None:
        """See `GenerationBody`; both names are honoured."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class TokenizeBody(_TemplateFields):
    """`POST /tokenize`: a prompt, or a conversation."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
                {"required": ["messages"], "properties": {"messages": {"type": "array"}}},
            ]
        }
    )
    model: Text | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise field_error("prompt", "or messages must be given, and not both")
        for name in _TemplateFields.model_fields:
            if self.messages is None and getattr(self, name) is not None:
                raise field_error(name, "is allowed only with messages")
        return self


class DetokenizeBody(_Strict):
    """`POST /detokenize`."""

    model: Text | None = None
    tokens: TokenIds
