"""One request from the step that brings it to its end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams, find_reason, list_needs

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Sequence:
    """What a request is and, while it holds no slot, how far it came; while it runs, its slot's row says that."""

    handle: int
    params: SamplingParams
    prompt_length: int
    limit: int
    """The length that ends it: prompt plus max_tokens, at most the model's context."""
    tokens: Int32
    """The prompt; after a preemption also what was generated before."""
    priority: int = 0
    arrival: int = 0
    """Its number among all requests of the group, given by the scheduler."""
    cached_tokens: int | None = None
    """Tokens of the prompt that were in the prefix cache when it got its first slot; None before."""
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    needs: tuple[str, ...] = field(init=False)
    """Which parts of the sampler it asks for; see `wire.params.Needs`."""
    reason: str = field(init=False)
    """Why it takes the per-request update; empty when it takes the batched one."""

    def __post_init__(self) -> None:
        """Work out once what many ask for."""
        self.needs = tuple(list_needs(self.params))
        self.reason = find_reason(self.params)

    @classmethod
    def of(cls, request: NewRequest, max_model_len: int) -> Sequence:
        """Start one from a validated request."""
        prompt = np.array(request.prompt, dtype=np.int32)
        limit = min(prompt.size + request.params.max_tokens, max_model_len)
        return cls(request.handle, request.params, prompt.size, limit, prompt, request.priority)

    @property
    def turn(self) -> tuple[int, int]:
        """Whose turn it is: the least runs first and is sent back last."""
        return self.priority, self.arrival
