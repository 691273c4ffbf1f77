"""What rank 0 tells the frontend at its start, as one JSON object on standard input, so that no secret is in argv."""

from __future__ import annotations

from typing import BinaryIO

import msgspec

from lockstep_worker import contract
from lockstep_worker.errors import ConfigError


class RemoteOutbound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where ranks on other hosts publish: ZeroMQ over TCP with CURVE. Keys are Z85 text, 40 characters each."""

    address: str
    """`tcp://IP:PORT`"""
    public_key: str
    """The frontend's own; ranks need it to connect."""
    secret_key: str
    rank_keys: tuple[str, ...]
    """Public keys of the ranks that may connect; nobody else gets a message in."""

    def __repr__(self) -> str:
        return f"RemoteOutbound(address={self.address!r})"


class FrontendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that the frontend needs to know."""

    model_path: str
    """Directory with `tokenizer.json` and, for chat, a chat template."""
    served_model_name: str
    max_model_len: int
    """Prompt and output together, in tokens."""
    vocab_size: int
    """The model's, not the tokenizer's: ids in `[0, vocab_size)` may be sent."""
    end_ids: tuple[int, ...]
    block_size: int
    """Of the KV cache, in tokens."""
    prefix_cache: bool
    inbound: str
    """`ipc://PATH` in a private directory: requests go out here to rank 0. The frontend binds it."""
    outbound: str
    """`ipc://PATH` in a private directory: ranks of this host publish here. The frontend binds it."""
    outbound_remote: RemoteOutbound | None = None
    num_publishers: int = 1
    """How many ranks publish tokens: the drain is complete when each has said so, behind its last token."""
    parent_pid: int | None = None
    """The process that must outlive the frontend; a frontend whose parent is another ends at once."""
    host: str = "127.0.0.1"
    port: int = contract.HTTP_PORT
    api_key: str | None = None
    max_queued: int = 4096
    """Sequences in flight; more are refused with 429."""
    request_timeout_s: float = 0.0
    """What a request may take from its arrival to its end; 0 is off. A client may ask for less, not for more."""
    max_n: int = 16
    max_body_bytes: int = 8 << 20
    drain_timeout_s: float = 120.0
    """What requests in flight get to finish once the end was asked for."""
    shutdown_timeout_s: float = 10.0
    """What the ranks get to leave their loop after that."""
    ready_timeout_s: float = 10.0
    """`/ready` fails when the last sign of progress is older."""
    log_level: str = "INFO"

    def __repr__(self) -> str:
        return f"FrontendSettings({self.served_model_name!r} at {self.host}:{self.port})"


def read_settings(stream: BinaryIO) -> FrontendSettings:
    """Read the settings from `stream` until its end.

    Raises:
        ConfigError: it is not such an object; the message names the field.
    """
    try:
        return msgspec.json.decode(stream.read(), type=FrontendSettings)
    except msgspec.DecodeError as error:
        raise ConfigError([f"frontend settings: {error}"]) from None
