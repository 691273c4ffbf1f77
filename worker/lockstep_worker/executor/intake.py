"""Intake: rank 0 takes requests from its link and refuses the bad ones alone, before any rank hears of them.

What passes `check_request` can be served by every rank; nothing after it may fail because of what a client sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import zmq

from lockstep_worker.errors import RequestError
from lockstep_worker.wire.messages import Inbound, NewRequest, Refused
from lockstep_worker.wire.params import INT32, MAX_LOGIT_BIAS, PARAMETERS, SamplingParams

MAX_ITEMS_PER_STEP = 512
"""More wait for the next step, so that a burst does not stall running requests for long."""
_TOKEN_IDS = ("end_ids", "stop_token_ids")
_NUMBERS = {name: (one.low, one.high) for name, one in PARAMETERS.items() if not isinstance(one.off, tuple)}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must fit into."""

    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int


def check_request(request: NewRequest, limits: Limits) -> None:
    """Check everything about a request that could hurt a step.

    Raises:
        RequestError: names the field and the limit.
    """
    params, length = request.params, len(request.prompt)
    if not 1 <= length < limits.max_model_len:
        raise RequestError(f"prompt has {length} tokens; the limit is 1 to {limits.max_model_len - 1}", "prompt")
    if min(request.prompt) < 0 or max(request.prompt) >= limits.vocab_size:
        raise RequestError(f"prompt holds a token id outside 0 to {limits.vocab_size - 1}", "prompt")
    if not -INT32 - 1 <= request.priority <= INT32:
        raise RequestError(f"priority is {request.priority}; the limits are {-INT32 - 1} to {INT32}", "priority")
    _check_params(params, limits.vocab_size)
    most = min(length + params.max_tokens, limits.max_model_len)
    needed = -(-most // limits.block_size)
    if needed > limits.num_blocks:
        raise RequestError(f"the request may need {needed} KV blocks; the pool has {limits.num_blocks}", "max_tokens")


def _check_params(params: SamplingParams, vocab_size: int) -> None:
    for field in _TOKEN_IDS:
        ids, most = getattr(params, field), PARAMETERS[field].width
        if len(ids) > most:
            raise RequestError(f"{field} has {len(ids)} ids; the limit is {most}", field)
        if any(not 0 <= token < vocab_size for token in ids):
            raise RequestError(f"{field} holds a token id outside 0 to {vocab_size - 1}", field)
    _check_bias(params.logit_bias, vocab_size)
    for field, (low, high) in _NUMBERS.items():
        if not low <= getattr(params, field) <= high:  # false for NaN as well
            raise RequestError(f"{field} is {getattr(params, field)}; the limits are {low} to {high}", field)


def _check_bias(bias: tuple[tuple[int, float], ...], vocab_size: int) -> None:
    if len(bias) > MAX_LOGIT_BIAS:
        raise RequestError(f"logit_bias has {len(bias)} ids; the limit is {MAX_LOGIT_BIAS}", "logit_bias")
    if any(not 0 <= token < vocab_size for token, _ in bias) or len(dict(bias)) < len(bias):
        raise RequestError(f"logit_bias holds a token id twice, or one outside 0 to {vocab_size - 1}", "logit_bias")
    declared = PARAMETERS["logit_bias"]
    if any(not declared.low <= value <= declared.high for _, value in bias):  # false for NaN as well
        raise RequestError(f"logit_bias holds a value outside {declared.low} to {declared.high}", "logit_bias")


class Intake:
    """Rank 0's end of the link: requests, cancels and the shutdown, in order.

    Args:
        context: of this process.
        address: where the frontend binds its PUSH socket.
        limits: for `check_request`.
        refuse: sends a refusal back.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, limits: Limits, refuse: Callable[[Refused], None]
    ) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(address)
        self._decoder = msgspec.msgpack.Decoder(Inbound)
        self._limits = limits
        self._refuse = refuse

    def wait(self, timeout_s: float) -> None:
        """Sleep until something arrives or the time is over; the kernel wakes it."""
        self._socket.poll(int(timeout_s * 1000))

    def take(self) -> list[Inbound]:
        """Take everything that has arrived, at most `MAX_ITEMS_PER_STEP`, without waiting; bad requests are refused."""
        items: list[Inbound] = []
        while len(items) < MAX_ITEMS_PER_STEP:
            try:
                item = self._decoder.decode(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
            if self._acceptable(item):
                items.append(item)
        return items

    def close(self) -> None:
        """Close the socket."""
        self._socket.close(linger=0)

    def _acceptable(self, item: Inbound) -> bool:
        if not isinstance(item, NewRequest):
            return True
        try:
            check_request(item, self._limits)
        except RequestError as error:
            self._refuse(Refused(item.handle, error.message, error.field))
            return False
        return True
