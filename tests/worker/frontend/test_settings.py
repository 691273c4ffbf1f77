from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from lockstep_worker.config import Config
from lockstep_worker.errors import ConfigError
from lockstep_worker.frontend.settings import FrontendSettings, RemoteOutbound, read_settings

SECRETS = ("geheim", "S" * 40)
REMOTE = RemoteOutbound(address="tcp://10.0.0.1:5", public_key="P" * 40, secret_key=SECRETS[1], rank_keys=("R" * 40,))
SETTINGS = FrontendSettings(
    config=Config(model="models/recall", port=8001, data_parallel=2, request_timeout=1.5),
    max_model_len=1024,
    vocab_size=448,
    end_ids=(2,),
    inbound="ipc:///in",
    outbound="ipc:///out",
    outbound_remote=REMOTE,
    api_key=SECRETS[0],
)


def read(fields: Any) -> FrontendSettings:
    return read_settings(io.BytesIO(msgspec.json.encode(fields)))


def test_the_frontend_reads_what_rank_0_writes() -> None:
    assert read(SETTINGS) == SETTINGS
    assert read(SETTINGS).num_publishers == 2


def test_no_secret_is_shown() -> None:
    for shown in (repr(SETTINGS), f"{SETTINGS}", repr(REMOTE)):
        assert not any(secret in shown for secret in SECRETS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"prot": 1}, ["prot"], id="unknown field"),
        pytest.param({"vocab_size": "448"}, ["vocab_size", "int"], id="type"),
        pytest.param({"config": {"model": ".", "prot": 1}}, ["option", "prot"], id="unknown option"),
        pytest.param({"config": {"model": ".", "port": "8000"}}, ["port", "int"], id="an option's type"),
        pytest.param({"config": {"model": ".", "port": 0}}, ["port", "1"], id="an option's limit"),
        pytest.param({"config": {}}, ["model"], id="an option is missing"),
        pytest.param({"config": None}, ["config", "object"], id="no options"),
    ],
)
def test_wrong_settings_are_refused_with_the_field(change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(json.loads(msgspec.json.encode(SETTINGS)) | change)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff"])
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(ConfigError, match="frontend settings"):
        read_settings(io.BytesIO(text))


def test_the_frontend_starts_without_torch_and_mpi() -> None:
    script = (
        "import sys, lockstep_worker.frontend.http.server\n"
        "print([name for name in ('torch', 'mpi4py') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
