"""How one request is sampled and when it ends: each parameter declared once, by name.

A declaration says what a parameter may be, which column of the device's table holds it, which part of the sampler it
asks for, and whether it leaves the batched update. `executor/intake` reads the ranges, `sampling/columns` the columns,
`schedule/sequence` the needs and reasons, `metrics/tables` the reasons. So a new parameter is one line here, one in the
part of the sampler that it asks for (with its column's name in `Columns`, for the type checker), and one in the API's
bodies.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import msgspec

MAX_STOP_TOKEN_IDS = 16
"""How many token ids can end a request, the model's own end ids included."""
MAX_LOGIT_BIAS = 300
"""How many token ids of one request can have a bias."""
MAX_TOP_LOGPROBS = 20
"""How many of a step's best tokens one request can ask for."""
INT32 = (1 << 31) - 1
FLOAT32 = float.fromhex("0x1.fffffep+127")
"""The largest number that a float32 holds."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Which parts of the sampler some row of a batch asks for; known on the host, so that no device sync decides it."""

    sampling: bool = False
    truncation: bool = False
    """Top-k or top-p, which need the logits in order."""
    min_p: bool = False
    min_tokens: bool = False
    bias: bool = False
    penalties: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """What is declared about one field of `SamplingParams`.

    Args:
        low: the least value that a request may have; of a field with several values, each of them.
        high: the greatest.
        column: the type of its column in the device's table, `int64` or `float32`; empty when it has none.
        width: how many values that column holds a row.
        need: the part of the sampler that a request asks for with another value than `off`; a field of `Needs`.
        off: the value without effect; the field's own default when it is left out.
        reason: why a request with another value than `off` takes the per-request update, in one word for metrics.
    """

    low: float
    high: float
    column: str = ""
    width: int = 1
    need: str = ""
    off: Any = None
    reason: str = ""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How one request's tokens are drawn and when it ends. Defaults mean "no effect".

    The frontend resolves everything that needs the tokenizer, and draws a seed where the client gave none. The order of
    the fields is the wire's.
    """

    max_tokens: Annotated[int, Parameter(1, INT32)]
    temperature: Annotated[float, Parameter(0, FLOAT32, "float32", need="sampling", off=0.0)] = 1.0
    """0 is greedy."""
    top_p: Annotated[float, Parameter(0, 1, "float32", need="truncation")] = 1.0
    top_k: Annotated[int, Parameter(0, INT32, "int64", need="truncation")] = 0
    """0 is off."""
    min_p: Annotated[float, Parameter(0, 1, "float32", need="min_p")] = 0.0
    seed: Annotated[int, Parameter(0, (1 << 63) - 1, "int64")] = 0
    end_ids: Annotated[tuple[int, ...], Parameter(0, INT32, "int64", MAX_STOP_TOKEN_IDS)] = ()
    """The model's end ids; empty under `ignore_eos`. The id itself is not part of the text."""
    stop_token_ids: Annotated[
        tuple[int, ...], Parameter(0, INT32, "int64", MAX_STOP_TOKEN_IDS, reason="stop_words")
    ] = ()
    """The request's own end ids: they end it with STOP_WORDS."""
    min_tokens: Annotated[int, Parameter(0, INT32, need="min_tokens")] = 0
    """No end id and no stop token id is drawn before so many tokens."""
    repetition_penalty: Annotated[float, Parameter(0.1, 10, "float32", need="penalties")] = 1.0
    """Above 1 every token of the prompt and of the output becomes less likely, below 1 more likely."""
    presence_penalty: Annotated[float, Parameter(-2, 2, "float32", need="penalties")] = 0.0
    """Taken once from the logit of every token of the output."""
    frequency_penalty: Annotated[float, Parameter(-2, 2, "float32", need="penalties")] = 0.0
    """Taken from a token's logit once for each time that it is in the output."""
    logit_bias: Annotated[tuple[tuple[int, float], ...], Parameter(-100, 100, need="bias")] = ()
    """(token id, value) with values in [-100, 100]; -100 bans the token, 100 forces it."""
    logprobs: Annotated[int, Parameter(-1, MAX_TOP_LOGPROBS, reason="logprobs")] = -1
    """-1 is off, 0 reports the drawn token's alone, k those of the k best tokens too."""


def _read_declarations() -> dict[str, Parameter]:
    hints = typing.get_type_hints(SamplingParams, include_extras=True)
    declared = {}
    for field in msgspec.structs.fields(SamplingParams):
        parameter = next(item for item in hints[field.name].__metadata__ if isinstance(item, Parameter))
        off = field.default if parameter.off is None else parameter.off
        declared[field.name] = replace(parameter, off=off)
    return declared


PARAMETERS: Mapping[str, Parameter] = _read_declarations()
"""What is declared, by the field's name, in the wire's order."""
NEEDS = tuple(field.name for field in fields(Needs))
REASONS = tuple(one.reason for one in reversed([*PARAMETERS.values()]) if one.reason)
"""Why a request takes the per-request update, the last declared first; where several hold, the first one counts."""
_OF_A_DRAW = ("truncation", "min_p")
_INDEX = {name: index for index, name in enumerate(PARAMETERS)}
_ASKING = [(need, [(_INDEX[name], one.off) for name, one in PARAMETERS.items() if one.need == need]) for need in NEEDS]
_DIVERTING = [(_INDEX[name], one.off, one.reason) for name, one in reversed([*PARAMETERS.items()]) if one.reason]


def list_needs(params: SamplingParams) -> list[str]:
    """List which parts of the sampler a request asks for; a greedy one draws nothing that could be truncated."""
    values = msgspec.structs.astuple(params)
    needs = [need for need, asking in _ASKING if any(values[index] != off for index, off in asking)]
    return needs if "sampling" in needs else [need for need in needs if need not in _OF_A_DRAW]


def find_reason(params: SamplingParams) -> str:
    """Say why a request cannot take the batched update, in the words of `REASONS`; empty when it can."""
    values = msgspec.structs.astuple(params)
    return next((reason for index, off, reason in _DIVERTING if values[index] != off), "")
