"""What the model itself thought of the tokens drawn: log-softmax of its logits, before anything shapes them.

Only rows that ask are worked out, and only their best entries leave the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import pad

_ALIGNED = 4
"""Entries of 16 bytes. A GPU's softmax adds up a row that begins elsewhere in another order."""


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """Of m rows, with the K best entries each, best first."""

    drawn: Tensor
    """float32 [m], of the drawn token, which need not be among the best"""
    ids: Tensor
    """int32 [m, K]"""
    values: Tensor
    """float32 [m, K]"""

    def to_host(self) -> TopLogprobs:
        """Start the way to the host; the result may be read once the device has come so far."""
        return TopLogprobs(*(tensor.to("cpu", non_blocking=True) for tensor in (self.drawn, self.ids, self.values)))


def top_logprobs(logits_mV: Tensor, tokens: Tensor, width: int) -> TopLogprobs:
    """Work out the logprobs of the rows that ask.

    Args:
        logits_mV: float32 [m, V], as the model gave them.
        tokens: int64 [m], the tokens drawn.
        width: K, at most V.
    """
    vocabulary = logits_mV.shape[1]
    padding = -vocabulary % _ALIGNED
    if padding:  # so that a row's numbers do not depend on where in the batch it is
        logits_mV = pad(logits_mV, (0, padding), value=float("-inf"))
    logprobs = logits_mV.log_softmax(dim=1)[:, :vocabulary]
    drawn = logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)
    values, ids = logprobs.topk(width, dim=1)
    return TopLogprobs(drawn, ids.int(), values)
