"""The sockets between the frontend and the ranks. It moves messages and knows nothing of what they mean.

The frontend binds all of them: a PUSH that rank 0 pulls from, a PULL that the ranks of this host push to, and, where
there are others, a second PULL over TCP. That one speaks CURVE and lets in only the keys it was told; a peer that has
none of them is dropped in the handshake, before any of its bytes is read as a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec
import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

from lockstep_worker.frontend.settings import FrontendSettings, RemoteOutbound
from lockstep_worker.wire.messages import Inbound, Outbound

logger = logging.getLogger(__name__)

_MAX_MESSAGES_A_TURN = 256
"""Messages read before others of the event loop get their turn; also what one flush of the streams may join."""
_RETRY_S = 0.01
_MAX_MESSAGE_BYTES = 64 << 20


class Link:
    """Both directions; everything happens on the event loop that is running at construction.

    Args:
        settings: names the addresses and keys.
        on_messages: gets what the ranks sent, oldest first, as a non-empty list.
        on_broken: gets the reason when what they sent cannot be used: from then on nothing can be relied on.

    Raises:
        zmq.ZMQError: an address cannot be bound.
    """

    def __init__(
        self,
        settings: FrontendSettings,
        *,
        on_messages: Callable[[list[Outbound]], None],
        on_broken: Callable[[str], None],
    ) -> None:
        self._on_messages = on_messages
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Outbound] = msgspec.msgpack.Decoder(Outbound)
        self._backlog: deque[bytes] = deque()
        self._inbound = self._socket(zmq.PUSH)
        self._inbound.bind(settings.inbound)
        self._sources = [self._socket(zmq.PULL)]
        self._sources[0].bind(settings.outbound)
        self._authenticator: AsyncioAuthenticator | None = None
        if settings.outbound_remote is not None:
            self._bind_remote(settings.outbound_remote)
        for source in self._sources:
            self._loop.add_reader(source.FD, self._read, source)
            self._loop.call_soon(self._read, source)  # the descriptor tells of changes only

    def send(self, message: Inbound) -> None:
        """Send a message to rank 0; it never blocks, and messages keep their order."""
        self._backlog.append(self._encoder.encode(message))
        if len(self._backlog) == 1:
            self._write()

    def close(self) -> None:
        """Close all sockets; what was sent and not taken yet is dropped.

        The context stays: ending it may hang for ever where a CURVE handshake is under way (libzmq issue 2733).
        """
        for source in self._sources:
            self._loop.remove_reader(source.FD)
            source.close(linger=0)
        self._inbound.close(linger=0)
        if self._authenticator is not None:
            self._authenticator.stop()

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)  # what is in flight is bounded by `max_queued`; a rank must never wait for the frontend
        return socket

    def _bind_remote(self, remote: RemoteOutbound) -> None:
        self._authenticator = AsyncioAuthenticator(zmq.asyncio.Context.shadow(self._context))
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain="*", credentials_provider=_KnownKeys(remote.rank_keys))
        socket = self._socket(zmq.PULL)
        socket.curve_server = True
        socket.curve_publickey = remote.public_key.encode()
        socket.curve_secretkey = remote.secret_key.encode()
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        socket.bind(remote.address)
        self._sources.append(socket)

    def _write(self) -> None:
        while self._backlog:
            try:
                self._inbound.send(self._backlog[0], zmq.NOBLOCK)
            except zmq.Again:  # rank 0 is not connected yet
                self._loop.call_later(_RETRY_S, self._write)
                return
            self._backlog.popleft()

    def _read(self, source: zmq.Socket[bytes]) -> None:
        if source.closed:
            return
        try:
            self._take(source)
        except Exception as error:  # the top of a loop: an error that is only logged would leave streams waiting
            logger.exception("what the ranks sent cannot be used")
            self._on_broken(f"what the ranks sent cannot be used: {error}")

    def _take(self, source: zmq.Socket[bytes]) -> None:
        messages: list[Outbound] = []
        try:
            while len(messages) < _MAX_MESSAGES_A_TURN:
                messages.append(self._decoder.decode(source.recv(zmq.NOBLOCK)))
        except zmq.Again:
            pass
        else:
            self._loop.call_soon(self._read, source)
        if messages:
            self._on_messages(messages)


class _KnownKeys:
    """Lets in the peers whose public key it was given."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = {key.encode() for key in keys}

    def callback(self, domain: str, key: bytes) -> bool:
        """Say whether the peer may connect; called in the handshake."""
        return key in self._keys
