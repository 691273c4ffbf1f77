"""Asks the other ranks where they stand, over their `/healthz`, when a hang was noticed.

Their addresses are exchanged once, at start, over MPI. The asking itself needs no collective, ends in bounded time and
never raises: it must work when the ranks do not. What comes back is not trusted: few bytes, few fields, known words.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Sequence
from typing import Self

import msgspec

from lockstep_worker import contract
from lockstep_worker.health.bounded import run_bounded
from lockstep_worker.health.suspects import Answer, Silence, Verdict, judge
from lockstep_worker.parallel.address import find_own_host
from lockstep_worker.parallel.comm import Comm
from lockstep_worker.phase import Phase, Standing

ASK_BOUND_S = 1.5
"""For all peers together; a lost first packet is sent again after one second."""
_MARGIN_S = 0.5
_LIMIT = 4096
_REQUEST = f"GET {contract.RANK_HEALTH_PATH} HTTP/1.0\r\n\r\n".encode()
_HOST_IS_SILENT = {errno.EHOSTUNREACH, errno.ETIMEDOUT}


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """Where a rank's own server listens; the host is empty where its peers cannot reach it."""

    node: str
    host: str
    port: int


class _Health(msgspec.Struct, frozen=True):
    """What counts of a peer's answer."""

    rank: int
    step: int
    phase: str


class Peers:
    """All ranks of the group, this one among them.

    Args:
        rank: this rank.
        peers: by rank.
    """

    def __init__(self, rank: int, peers: Sequence[Peer]) -> None:
        self._rank, self._peers = rank, peers
        self._nodes = [peer.node for peer in peers]

    @classmethod
    def share(cls, comm: Comm, host: str, port: int) -> Self:
        """Tell all ranks the address that this rank's server is bound to; blocking, at start."""
        node = socket.gethostname()
        is_alone = len(set(comm.gather_text(node))) == 1
        mine = Peer(node, _find_address(host, is_alone=is_alone), port)
        told = comm.gather_text(msgspec.json.encode(mine).decode())
        return cls(comm.rank, [msgspec.json.decode(text, type=Peer) for text in told])

    def judge(self, standing: Standing, seen: str) -> Verdict:
        """Find out who is stuck, in bounded time; never raises.

        Args:
            standing: where this rank stands.
            seen: what it noticed, as the detector says it.
        """
        outcome = run_bounded(lambda: self._judge(standing, seen), ASK_BOUND_S + _MARGIN_S)
        return outcome.value or Verdict(None, f"rank {self._rank} saw {seen}, in {standing}")

    def _judge(self, standing: Standing, seen: str) -> Verdict:
        return judge(self.ask(standing), self._rank, self._nodes, seen)

    def ask(self, standing: Standing, bound_s: float = ASK_BOUND_S) -> list[Answer]:
        """Ask all others at once; return every rank's answer, by rank, with `standing` as this rank's own."""
        others = {rank: peer for rank, peer in enumerate(self._peers) if rank != self._rank}
        answers = asyncio.run(_ask_all(others, bound_s)) if others else {}
        return [answers.get(rank, standing) for rank in range(len(self._peers))]


def _find_address(bound: str, *, is_alone: bool) -> str:
    """Turn the address that a server is bound to into one that its peers can connect to; empty when there is none."""
    address = ipaddress.ip_address(bound)
    if not address.is_unspecified:
        return bound if is_alone or not address.is_loopback else ""
    if is_alone:
        return "127.0.0.1"
    with contextlib.suppress(OSError):  # who cannot name itself must still start
        return find_own_host()
    return ""


async def _ask_all(peers: dict[int, Peer], bound_s: float) -> dict[int, Answer]:
    tasks = {rank: asyncio.create_task(_ask(rank, peer)) for rank, peer in peers.items()}
    await asyncio.wait(tasks.values(), timeout=bound_s)
    return {rank: task.result() if task.done() else Silence.NO_ANSWER for rank, task in tasks.items()}


async def _ask(rank: int, peer: Peer) -> Answer:
    if not peer.host:
        return Silence.UNREACHABLE
    try:
        reader, writer = await asyncio.open_connection(peer.host, peer.port)
        with contextlib.closing(writer):
            writer.write(_REQUEST)
            return _read(await _read_to_end(reader), rank)
    except OSError as error:
        return Silence.NO_ANSWER if error.errno in _HOST_IS_SILENT else Silence.UNREACHABLE


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    data = b""
    while len(data) <= _LIMIT and (more := await reader.read(_LIMIT)):
        data += more
    return data


def _read(answer: bytes, rank: int) -> Answer:
    """Take a standing out of an HTTP answer; another rank's, or no answer at all, says nothing about this one."""
    if len(answer) > _LIMIT:
        return Silence.UNREACHABLE
    try:
        health = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=_Health)
        standing = Standing(health.step, Phase[health.phase.upper()])
    except (msgspec.MsgspecError, KeyError):
        return Silence.UNREACHABLE
    return standing if health.rank == rank else Silence.UNREACHABLE
