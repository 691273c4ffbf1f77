"""Why a row ended, decided on the host: the reference for the device's `sampling/finish`, by the same order."""

from __future__ import annotations

from lockstep_worker.wire.messages import FinishCode
from lockstep_worker.wire.params import SamplingParams


def finish_code(token: int, length: int, limit: int, params: SamplingParams) -> FinishCode:
    """Tell why a request ended with its newest token: END_ID, then LENGTH, then STOP_WORDS; the first that holds wins.

    Args:
        token: its newest token.
        length: its tokens, this one included.
        limit: the length that ends it.
        params: its parameters.
    """
    if token in params.end_ids:
        return FinishCode.END_ID
    if length >= limit:
        return FinishCode.LENGTH
    if token in params.stop_token_ids:
        return FinishCode.STOP_WORDS
    return FinishCode.NOT_FINISHED
