"""Request bodies, strictly: no field is ignored, no type is guessed.

Fields that others know and this server does not support are in `unsupported`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from lockstep_worker.frontend.faults import field_error
from lockstep_worker.frontend.unsupported import (
    UNSUPPORTED,
    UNSUPPORTED_IN_CHAT,
    UNSUPPORTED_IN_COMPLETIONS,
    UNSUPPORTED_IN_MESSAGES,
    NeutralValues,
    drop_neutral,
)
from lockstep_worker.request import MAX_LOGIT_BIAS, MAX_TOP_LOGPROBS

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_INT32 = 2**31 - 1


def _valid_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError(
            "unicode", "must be valid Unicode; there is a lone surrogate at character {at}", {"at": error.start}
        ) from None
    return text


def _has_token_ids(bias: dict[str, float]) -> dict[str, float]:
    """Check that the names of a JSON object are whole numbers as Python would write them, so that none comes twice."""
    for name in bias:
        if not (name.isascii() and name.isdigit() and str(int(name[:20])) == name):
            raise PydanticCustomError("token_id", "must have token ids, which are whole numbers, as its keys")
    return bias


def _one_message(message: str) -> WrapValidator:
    """Report one error for a whole union instead of one for each of its members."""

    def validate(value: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            return handler(value)
        except ValidationError as error:
            for detail in error.errors():
                if detail["type"] == "unicode":
                    raise PydanticCustomError("unicode", "{reason}", {"reason": detail["msg"]}) from None
            raise PydanticCustomError("union", "{message}", {"message": message}) from None

    return WrapValidator(validate)


Text = Annotated[str, AfterValidator(_valid_unicode)]
TokenIds = Annotated[list[int], Field(fail_fast=True)]
Prompt = Annotated[
    Text | TokenIds | Annotated[list[Text], Field(fail_fast=True)] | Annotated[list[TokenIds], Field(fail_fast=True)],
    _one_message("must be a string, a list of strings, a list of token ids, or a list of such lists"),
]
StopText = Annotated[Text, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stop = Annotated[
    StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)],
    _one_message(
        f"must be a string or a list of at most {MAX_STOPS} strings, each with 1 to {MAX_STOP_CHARS} characters"
    ),
]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
LogitBias = Annotated[
    dict[Text, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]],
    Field(max_length=MAX_LOGIT_BIAS),
    AfterValidator(_has_token_ids),
]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class StreamOptions(_Strict):
    """What a stream holds beside text."""

    include_usage: bool | None = None


class GenerationBody(_Strict):
    """What both ways to generate have in common."""

    unsupported: ClassVar[NeutralValues] = UNSUPPORTED
    model: Text
    max_tokens: int | None = Field(None, ge=0, le=MAX_INT32)
    min_tokens: int | None = Field(None, ge=0, le=MAX_INT32)
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
    prompt: Prompt
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


Content = Annotated[
    Text | list[TextPart],
    _one_message('must be a string or a list of {"type": "text", "text": ...}; other parts are not supported'),
]


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


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    unsupported = UNSUPPORTED | UNSUPPORTED_IN_CHAT
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=0, le=MAX_INT32)
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


class TokenizeBody(_Strict):
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
    messages: list[Message] | None = Field(None, min_length=1)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise field_error("prompt", "or messages must be given, and not both")
        return self


class DetokenizeBody(_Strict):
    """`POST /detokenize`."""

    model: Text | None = None
    tokens: TokenIds
