"""The types of request fields: what one value may be, whatever the request."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from lockstep_worker.frontend.text.chat import RESERVED_ARGUMENTS
from lockstep_worker.wire.params import MAX_LOGIT_BIAS, MAX_TOP_LOGPROBS

MAX_INT32 = 2**31 - 1
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_PROMPTS = 8192
MAX_MESSAGES = 8192
"""More would hold up everybody's streams while they are checked."""
CONTENT_MESSAGE = 'must be a string or a list of {"type": "text", "text": ...}; other parts are not supported'


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


def _is_free(arguments: dict[str, Any]) -> dict[str, Any]:
    """Check that no argument of a template has a name that is taken."""
    if taken := sorted(RESERVED_ARGUMENTS & arguments.keys()):
        raise PydanticCustomError("arguments", "{name} cannot be set here", {"name": taken[0]})
    return arguments


def one_message(message: str) -> WrapValidator:
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
    Text
    | TokenIds
    | Annotated[list[Text], Field(fail_fast=True, max_length=MAX_PROMPTS)]
    | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_PROMPTS)],
    one_message(
        f"must be a string, a list of strings, a list of token ids, or a list of such lists, at most {MAX_PROMPTS}"
    ),
]
StopText = Annotated[Text, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stop = Annotated[
    StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)],
    one_message(
        f"must be a string or a list of at most {MAX_STOPS} strings, each with 1 to {MAX_STOP_CHARS} characters"
    ),
]
Count = Annotated[int, Field(ge=0, le=MAX_INT32)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
LogitBias = Annotated[
    dict[Text, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]],
    Field(max_length=MAX_LOGIT_BIAS),
    AfterValidator(_has_token_ids),
]
TemplateArguments = Annotated[dict[Text, Any], AfterValidator(_is_free)]
