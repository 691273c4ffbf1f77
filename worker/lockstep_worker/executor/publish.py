"""How tokens get out: one message a step, straight from the rank that made them to the frontend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import zmq

from lockstep_worker.schedule.sampled import Sampled
from lockstep_worker.schedule.sequence import Int64
from lockstep_worker.wire.messages import EngineDown, FinishCode, Outbound, Tokens

_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Outlet:
    """Where a rank reaches the frontend: a path on its host, or TCP with CURVE keys (Z85 text) from another host."""

    address: str
    frontend_key: str = ""
    public_key: str = ""
    secret_key: str = field(default="", repr=False)

    def connect(self, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
        """Open a PUSH socket without a bound on what it holds; it connects when the frontend listens."""
        socket = context.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, 0)
        if self.frontend_key:
            socket.curve_serverkey = self.frontend_key.encode()
            socket.curve_publickey = self.public_key.encode()
            socket.curve_secretkey = self.secret_key.encode()
        socket.connect(self.address)
        return socket


class Publisher:
    """A rank's end of the outbound link. Sends never block the loop: the frontend's queue has no bound, its intake has.

    Args:
        context: of this process.
        outlet: where the frontend is.
        rank: this rank.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], outlet: Outlet, rank: int) -> None:
        self._socket = outlet.connect(context)
        self._rank = rank

    def send(self, message: Outbound) -> None:
        """Send one message."""
        self._socket.send(_encoder.encode(message))

    def publish(self, step: int, handle_of: Int64, sampled: Sampled, cancelled: list[int]) -> None:
        """Send a step's tokens and the ends of cancelled requests; nothing when there are none.

        Args:
            step: the step's number.
            handle_of: the slot table's handles.
            sampled: the step's live tokens with their final codes.
            cancelled: handles that were cancelled in this step.
        """
        rows, tokens, codes = sampled.flatten()
        columns: list[tuple[npt.NDArray[Any], ...]] = [(handle_of[rows], tokens, codes)]
        if cancelled:
            count = len(cancelled)
            columns.append((np.array(cancelled), np.full(count, -1), np.full(count, int(FinishCode.CANCELLED))))
        handles, tokens, codes = (np.concatenate(parts) for parts in zip(*columns, strict=True))
        logprobs = None if sampled.logprobs is None else sampled.logprobs.pack(rows)
        if handles.size:
            self.send(Tokens.pack(self._rank, step, handles, tokens, codes, logprobs))

    def close(self, linger_s: float = 1.0) -> None:
        """Close the socket once what was sent has left, within `linger_s`."""
        self._socket.close(linger=int(linger_s * 1000))


def say_engine_down(outlet: Outlet, rank: int, reason: str, exit_code: int) -> None:
    """Tell the frontend that the group ends, from whatever thread found out; on a socket and context of its own."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = outlet.connect(context)
    socket.send(_encoder.encode(EngineDown(rank, reason, exit_code)))
    socket.close(linger=250)
    context.term()
