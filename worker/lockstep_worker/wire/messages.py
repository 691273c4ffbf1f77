"""What travels between the frontend and the ranks, and the words in it.

The frontend gives every request a handle, a positive integer never used twice in its life. Requests and cancels go to
rank 0 only; every rank publishes its own tokens straight back. Everything is msgspec MessagePack, never pickle.
"""

from __future__ import annotations

import enum

import msgspec
import numpy as np
import numpy.typing as npt

from lockstep_worker.wire.params import SamplingParams


class FinishCode(enum.IntEnum):
    """Why a request stopped. The device writes the first four; where several hold, the smallest non-zero wins."""

    NOT_FINISHED = 0
    END_ID = 1
    LENGTH = 2
    STOP_WORDS = 3
    CANCELLED = 4


class NewRequest(msgspec.Struct, frozen=True, array_like=True, tag=1, forbid_unknown_fields=True):
    """One sequence to generate."""

    handle: int
    prompt: list[int]
    params: SamplingParams
    priority: int = 0
    """Lower runs first; among equals who came first. In int32."""


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=2, forbid_unknown_fields=True):
    """The client went away or a stop string was met: free everything. Unknown and ended handles are ignored."""

    handle: int


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag=3, forbid_unknown_fields=True):
    """Finish all requests that came before, then leave the loop."""


Inbound = NewRequest | Cancel | Shutdown
"""What the frontend sends to rank 0, one message each, and rank 0 to its peers, as one list a step."""


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Of those tokens of one message whose requests ask: m tokens, arrays as little-endian bytes.

    They are the log-softmax of the model's own logits, before anything that `SamplingParams` does to them.
    """

    indices: bytes
    """int32 [m]: which of the message's tokens"""
    drawn: bytes
    """float32 [m]: the drawn token's"""
    counts: bytes
    """uint8 [m]: how many best tokens follow for each"""
    ids: bytes
    """int32, the best tokens of all, best first, one after another"""
    values: bytes
    """float32, theirs"""

    def unpack(self) -> dict[int, tuple[float, list[int], list[float]]]:
        """Return the drawn token's logprob, the best ids and theirs, by the token's index in the message."""
        ids = np.frombuffer(self.ids, dtype="<i4").tolist()
        values = np.frombuffer(self.values, dtype="<f4").tolist()
        ends = np.frombuffer(self.counts, dtype="u1").cumsum(dtype=np.int64).tolist()
        indices, drawn = (
            np.frombuffer(self.indices, dtype="<i4").tolist(),
            np.frombuffer(self.drawn, dtype="<f4").tolist(),
        )
        return {
            index: (value, ids[start:end], values[start:end])
            for index, value, start, end in zip(indices, drawn, [0, *ends], ends, strict=False)
        }


class Tokens(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """All tokens that one rank made in one step: three arrays of equal length as little-endian bytes.

    A handle may stand in several entries, in the order of its tokens; a finish code stands with the last. An example of
    a step in which 17 drew one token, 21 two, the second of which ended it, and 9 was cancelled:

        handles  17  21  21  9
        tokens   41  17  52  -1
        codes    0   0   1   4
    """

    rank: int
    step: int
    handles: bytes
    """int64"""
    tokens: bytes
    """int32; -1 in an entry without a token (a cancelled request)"""
    codes: bytes
    """uint8 `FinishCode`"""
    logprobs: Logprobs | None = None
    """None when no token's request asks."""

    @classmethod
    def pack(
        cls,
        rank: int,
        step: int,
        handles: npt.ArrayLike,
        tokens: npt.ArrayLike,
        codes: npt.ArrayLike,
        logprobs: Logprobs | None = None,
    ) -> Tokens:
        """Build one from arrays or lists of equal length."""
        return cls(
            rank,
            step,
            np.asarray(handles, dtype="<i8").tobytes(),
            np.asarray(tokens, dtype="<i4").tobytes(),
            np.asarray(codes, dtype="u1").tobytes(),
            logprobs,
        )

    def unpack(self) -> tuple[list[int], list[int], list[int]]:
        """Return (handles, tokens, codes) as lists of Python integers."""
        return (
            np.frombuffer(self.handles, dtype="<i8").tolist(),
            np.frombuffer(self.tokens, dtype="<i4").tolist(),
            np.frombuffer(self.codes, dtype="u1").tolist(),
        )


class Started(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Requests that got their slot, and what the prefix cache held of their prompts; once a request, before its tokens.

    Only those with something in the cache are told.
    """

    handles: list[int]
    cached_tokens: list[int]


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Rank 0 cannot serve this request; no rank has heard of it."""

    handle: int
    message: str
    field: str | None = None


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The group is alive: sent by rank 0 once when it is ready, then at most once a second, also while parked.

    The numbers are sums over all data replicas.
    """

    rank: int
    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int


class EngineDown(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A rank is about to end the group; open streams end with its reason."""

    rank: int
    """Who says so; not always the one to blame."""
    reason: str
    """A whole sentence that names the rank to blame, where that is known."""
    exit_code: int


class Drained(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A publishing rank's loop ended after `Shutdown`: what was queued before is done; nothing follows from it."""

    rank: int


Outbound = Tokens | Started | Refused | Progress | EngineDown | Drained
"""What ranks send to the frontend."""
