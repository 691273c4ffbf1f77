"""Routing: which data replica a new request goes to. Every rank decides from what all ranks know, and all alike.

`route` is the decision: integers only, no clock, no random number, no hash of the process. `Router` brings it what it
needs: the replicas' loads stand in the exchange's rows; what each finds of the new prompts in its prefix cache takes
one more small allgather, in steps with new requests only. A request is routed in the step that brings it, and stays.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.errors import RankDiverged
from lockstep_worker.executor.exchange import Exchanged
from lockstep_worker.executor.idle import wait_awake
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.parallel.comm import Comm
from lockstep_worker.parallel.topology import Topology
from lockstep_worker.wire.messages import Inbound, NewRequest

_GROUP_TOKENS = 64
"""Prompts of one list that begin with the same tokens are compared further: none of them is in a cache yet."""
_USEFUL_TENTHS = 1
"""A match that covers no more tenths of the prompt than this is not worth an uneven load."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A new request: its prompt, and how many of its tokens each replica has in its prefix cache."""

    handle: int
    prompt: Sequence[int]
    matches: Sequence[int] = ()
    """One for each replica; empty when the caches do not count."""


@dataclass(slots=True)
class Load:
    """What a replica has to do: requests that are not ended, and the tokens of their prompts."""

    requests: int
    tokens: int


def route(newcomers: Sequence[Newcomer], loads: Sequence[Load]) -> dict[int, int]:
    """Choose a replica for every newcomer.

    A replica is open to a newcomer while it has fewer requests than its fair share of all, rounded up; one that holds a
    useful part of its prompt, until it has half as much again: there a hot prefix spreads. Of the open ones the one
    with the least to compute wins, weighed with half its share of the load; ties are broken by handle.

    Args:
        newcomers: in any order; handles differ.
        loads: each replica's before them.

    Returns:
        The replica's index by handle.
    """
    loads = [Load(load.requests, load.tokens) for load in loads]
    total = len(newcomers) + sum(load.requests for load in loads)
    chosen: dict[int, int] = {}
    ahead = _Ahead()
    for newcomer in sorted(newcomers, key=lambda one: (-len(one.prompt), one.handle)):
        index = _choose(newcomer, ahead.extend(newcomer, len(loads)), loads, total)
        chosen[newcomer.handle] = index
        loads[index].requests += 1
        loads[index].tokens += len(newcomer.prompt)
        ahead.note(newcomer, index)
    assert len(chosen) == len(newcomers), "every new request is routed, and once"
    return chosen


def _choose(newcomer: Newcomer, matches: Sequence[int], loads: Sequence[Load], total: int) -> int:
    """Pick the open replica of the least score; the least loaded one is always open."""
    # One is always open: the shares add up to at least all requests, this newcomer included, so not all can be full.
    count, length = len(loads), len(newcomer.prompt)
    fair, hot = -(-total // count), -(-3 * total // (2 * count))
    held = newcomer.matches or [0] * count
    caps = [hot if found * 10 > length * _USEFUL_TENTHS else fair for found in held]
    if max(matches) * 10 <= length * _USEFUL_TENTHS:
        matches = [0] * count
    scale = max(sum(load.tokens for load in loads), length)

    def score(index: int) -> tuple[int, int, int]:
        # What is left to compute plus half the prompt times the share of the load, times twice the scale: integers
        # only, so that no rank rounds otherwise. The handle turns the order of equals, so that none always comes first.
        cost = 2 * (length - matches[index]) * scale + length * loads[index].tokens
        return cost, loads[index].requests, (index - newcomer.handle) % count

    return min((index for index in range(count) if loads[index].requests < caps[index]), key=score)


@dataclass
class _Ahead:
    """What newcomers of one list will find in the caches because of those routed before them."""

    prompts: dict[tuple[int, ...], dict[int, Sequence[int]]] = field(default_factory=dict)
    """By beginning and replica: the longest prompt, which comes first."""

    def extend(self, newcomer: Newcomer, count: int) -> list[int]:
        """Return the newcomer's matches, with the prompts ahead of it counted as cached."""
        if not newcomer.matches:
            return [0] * count
        matches = list(newcomer.matches)
        for index, prompt in self.prompts.get(tuple(newcomer.prompt[:_GROUP_TOKENS]), {}).items():
            matches[index] = max(matches[index], min(_common(newcomer.prompt, prompt), len(newcomer.prompt) - 1))
        return matches

    def note(self, newcomer: Newcomer, index: int) -> None:
        """Remember where a newcomer went."""
        self.prompts.setdefault(tuple(newcomer.prompt[:_GROUP_TOKENS]), {}).setdefault(index, newcomer.prompt)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the tokens that both begin with."""
    shorter = min(len(one), len(other))
    differing = np.flatnonzero(np.asarray(one[:shorter]) != np.asarray(other[:shorter]))
    return int(differing[0]) if differing.size else shorter


class Router:
    """Keeps of every step's items those that concern this rank.

    Args:
        comm: the group.
        topology: this rank's.
        pool: this rank's blocks.
        metrics: counts the gathers.
        cache_aware: whether what the prefix caches hold counts.
    """

    def __init__(
        self, comm: Comm, topology: Topology, pool: BlockPool, metrics: RankMetrics, *, cache_aware: bool
    ) -> None:
        self._comm = comm
        self._topology = topology
        self._pool = pool
        self._metrics = metrics
        self._cache_aware = cache_aware
        self.digest = 0
        """Running checksum of all decisions; must be the same on every rank of the group."""

    def mine(self, exchanged: Exchanged) -> list[Inbound]:
        """Route the new requests and leave out those of other replicas; cancels concern whoever has the request.

        Raises:
            RankDiverged: ranks of one replica found different prefixes.
        """
        if self._topology.data.size == 1:
            return exchanged.items
        requests = [item for item in exchanged.items if isinstance(item, NewRequest)]
        if not requests:
            if self._cache_aware:
                self._metrics.collectives_total[("prefix_matches", "skipped")].inc()
            return exchanged.items
        held = (exchanged.of_replicas(name, self._topology).tolist() for name in ("active", "tokens"))
        loads = [Load(requests, tokens) for requests, tokens in zip(*held, strict=True)]
        matches = self._gather_matches(requests) if self._cache_aware else [()] * len(requests)
        table = route(
            [Newcomer(one.handle, one.prompt, found) for one, found in zip(requests, matches, strict=True)], loads
        )
        self.digest = zlib.crc32(np.array(sorted(table.items()), dtype=np.int64).tobytes(), self.digest)
        mine = self._topology.data.index
        return [item for item in exchanged.items if not isinstance(item, NewRequest) or table[item.handle] == mine]

    def _gather_matches(self, requests: list[NewRequest]) -> Sequence[Sequence[int]]:
        """Ask every replica how much of each prompt it has; all ranks know the gather's width from the payload."""
        row = np.array([self._pool.probe(request.prompt) for request in requests], dtype=np.int64)
        start = time.perf_counter()
        pending = self._comm.start_allgather(row)
        wait_awake(pending)
        self._metrics.collective_wait_seconds[("prefix_matches",)].observe(time.perf_counter() - start)
        self._metrics.collectives_total[("prefix_matches", "executed")].inc()
        self._metrics.collective_bytes_total[("prefix_matches",)].inc(row.nbytes)
        found = pending.rows().reshape(self._topology.data.size, self._topology.replica_size, row.size)
        if (found != found[:, :1]).any():
            raise RankDiverged("ranks of one replica found different prefixes in their caches")
        matches: list[list[int]] = found[:, 0].T.tolist()
        return matches
