"""What rank 0 tells the frontend at its start, as one JSON object on standard input, so that no secret is in argv.

An option of the group is declared in `Config` alone; beside it stands only what rank 0 found out or made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from lockstep_worker.config import Config
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

    config: Config
    """The group's options, as its ranks have them."""
    max_model_len: int
    """Prompt and output together, in tokens: the limit in force, where `config` has what was asked for."""
    vocab_size: int
    """The model's, not the tokenizer's: ids in `[0, vocab_size)` may be sent."""
    end_ids: tuple[int, ...]
    inbound: str
    """`ipc://PATH` in a private directory: sequences go out here to rank 0. The frontend binds it."""
    outbound: str
    """`ipc://PATH` in a private directory: ranks of this host publish here. The frontend binds it."""
    outbound_remote: RemoteOutbound | None = None
    parent_pid: int | None = None
    """The process that must outlive the frontend; a frontend whose parent is another ends at once."""
    api_key: str | None = None
    """What the file holds that `config` names."""
    max_n: int = 16
    max_body_bytes: int = 8 << 20
    shutdown_timeout_s: float = 10.0
    """What the ranks get to leave their loop, after what `config` gives the requests in flight."""
    ready_timeout_s: float = 10.0
    """`/ready` fails when the last sign of progress is older."""

    @property
    def num_publishers(self) -> int:
        """How many ranks publish tokens: the drain is complete when each has said so, behind its last token."""
        return self.config.data_parallel

    def __repr__(self) -> str:
        return f"FrontendSettings({self.config.served_model_name!r} at {self.config.host}:{self.config.port})"


def read_settings(stream: BinaryIO) -> FrontendSettings:
    """Read the settings from `stream` until its end.

    Raises:
        ConfigError: it is not such an object; the message names the field.
    """
    text = stream.read()
    try:
        settings = msgspec.json.decode(text, type=FrontendSettings)
    except msgspec.DecodeError as error:
        raise ConfigError([f"frontend settings: {error}"]) from None
    if problems := list(_unknown_options(msgspec.json.decode(text)["config"])):
        raise ConfigError(problems)
    return settings


def _unknown_options(config: dict[str, Any]) -> Iterator[str]:
    """Yield a problem for each name that is no option; msgspec passes over such names in a dataclass."""
    for name in config.keys() - {field.name for field in dataclasses.fields(Config)}:
        yield f"frontend settings: config has no option {name}"
