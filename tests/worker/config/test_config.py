from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep_worker import contract
from lockstep_worker.__main__ import build_parser, main
from lockstep_worker.config import Config, given_flags, load_config
from lockstep_worker.errors import ConfigError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "recall"
    directory.mkdir()
    return directory


def serve_config(command: list[str], environ: dict[str, str] | None = None) -> Config:
    arguments, unknown = build_parser().parse_known_args(command)
    return load_config(given_flags(arguments), environ or {}, unknown=unknown)


def problems_of(**fields: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Config(**{"model": "m", **fields})  # type: ignore[arg-type]
    return caught.value.problems


def test_the_defaults_hold_and_the_name_follows_the_directory(model: Path) -> None:
    config = serve_config(["serve", "--model", str(model)])
    assert config == Config(model=str(model))
    assert config.served_model_name == "recall"
    assert (config.port, config.metrics_port) == (contract.HTTP_PORT, contract.RANK_METRICS_PORT)
    assert config.world_size == 1


def test_flags_win_over_the_environment_and_the_environment_over_the_file(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text(f'model = "{model}"\nmax_batch_size = 8\nblock_size = 32\noverlap = false\nhang_timeout = 7\n')
    environ = {"LOCKSTEP_MAX_BATCH_SIZE": "9", "LOCKSTEP_BLOCK_SIZE": "8", "LOCKSTEP_CONFIG": str(file)}
    config = serve_config(["serve", "--max-batch-size", "10", "--no-prefix-cache"], environ)
    assert (config.max_batch_size, config.block_size, config.hang_timeout) == (10, 8, 7.0)
    assert (config.overlap, config.prefix_cache) == (False, False)


def test_the_file_may_be_json(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "worker.json"
    file.write_text(json.dumps({"model": str(model), "max_model_len": None, "debug_checks": True}))
    assert serve_config(["serve", "--config", str(file)]).debug_checks


def test_every_fault_of_every_source_is_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text('block_sise = 16\nmax_queued = "many"\noverlap = 1\n')
    environ = {"LOCKSTEP_DTYPE": "int8", "LOCKSTEP_NUM_BLOCKS": "1.5"}
    flags = ["--model", str(tmp_path / "nowhere"), "--tensor-parallel", "0", "--hang-timeout", "nan", "--modle", "x"]
    with pytest.raises(ConfigError) as caught:
        serve_config(["serve", "--config", str(file), *flags], environ)
    problems = caught.value.problems
    expected = {
        "block_sise": "unknown field",
        "max_queued": "'many' is not a whole number",
        "overlap": "1 is not true or false",
        "dtype": "'int8' is not one of auto, float32, bfloat16, float16",
        "num_blocks": "(in LOCKSTEP_NUM_BLOCKS)",
        "model": "is not a directory",
        "tensor_parallel": "0 is below the limit, 1",
        "hang_timeout": "nan is not a finite number",
        "command line": "unknown argument --modle",
    }
    for field, words in expected.items():
        assert any(problem.startswith(f"{field}:") and words in problem for problem in problems), (field, problems)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"data_parallel": 0}, "data_parallel: 0 is below the limit, 1", id="no-copy"),
        pytest.param({"port": 9403, "data_parallel": 2, "tensor_parallel": 2}, "port: 9403 is taken", id="all-ranks"),
        pytest.param({"routing": "random"}, "routing: 'random' is not one of", id="routing"),
        pytest.param(
            {"routing": "cache-aware", "prefix_cache": False}, "routing: cache-aware needs prefix_cache", id="no-cache"
        ),
        pytest.param(
            {"batch_invariant": True, "fast_path": False}, "batch_invariant: needs fast_path", id="no-fast-path"
        ),
        pytest.param({"batch_invariant": True, "device": "cpu"}, "batch_invariant: on a GPU only", id="invariant-cpu"),
        pytest.param({"max_batch_size": 1025}, "max_batch_size: 1025 is above the limit, 1024", id="too-many-slots"),
        pytest.param({"max_num_tokens": 63}, "max_num_tokens: 63 is below max_batch_size, 64", id="budget"),
        pytest.param({"kv_cache_memory_fraction": 0.0}, "must be above 0", id="no-memory"),
        pytest.param({"port": 9401, "tensor_parallel": 2}, "port: 9401 is taken", id="ports-collide"),
        pytest.param({"metrics_port": 65535, "tensor_parallel": 2}, "passes 65535", id="ports-run-out"),
        pytest.param({"drain_timeout": float("inf")}, "drain_timeout: inf is not a finite", id="infinite"),
        pytest.param({"max_num_tokens": True}, "max_num_tokens: True is not a whole number", id="wrong-type"),
        pytest.param({"host": ""}, "host: must not be empty", id="empty"),
    ],
)
def test_a_wrong_value_is_refused_with_field_and_limit(fields: dict[str, object], words: str) -> None:
    assert [problem for problem in problems_of(**fields) if words in problem]


def test_a_hang_timeout_of_zero_is_allowed_and_means_off() -> None:
    assert Config(model="m", hang_timeout=0).hang_timeout == 0


def test_a_kubernetes_service_link_is_not_taken_for_a_port(model: Path) -> None:
    environ = {"LOCKSTEP_PORT": "tcp://10.96.0.7:8000", "LOCKSTEP_METRICS_PORT": "tcp://10.96.0.8:9400"}
    assert serve_config(["serve", "--model", str(model)], environ) == Config(model=str(model))


def test_an_empty_variable_means_not_given(model: Path) -> None:
    environ = {"LOCKSTEP_PORT": "", "LOCKSTEP_API_KEY_FILE": "", "LOCKSTEP_CONFIG": ""}
    assert serve_config(["serve", "--model", str(model)], environ) == Config(model=str(model))


def test_a_configuration_survives_its_way_to_the_ranks() -> None:
    config = Config(model="/models/ä b", num_blocks=7, overlap=False, hang_timeout=1.5, api_key_file="/run/key")
    assert Config.from_json(config.to_json()) == config


@pytest.mark.parametrize("text", ["", "[]", '{"model": "m", "modle": 1}', "{}", '{"model": "m", "port": "x"}'])
def test_a_broken_configuration_for_the_ranks_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Config.from_json(text)


def test_every_field_can_be_set_by_a_flag_and_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    for field in dataclasses.fields(Config):
        assert f"--{field.name.replace('_', '-')}" in text


def test_a_wrong_command_line_ends_with_the_configuration_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0"]) == contract.EXIT_CONFIG
    errors = capsys.readouterr().err
    assert "port: 0 is below the limit, 1" in errors
    assert "model: missing" in errors
    assert main(["fly"]) == contract.EXIT_CONFIG


def test_help_and_configuration_need_neither_torch_nor_mpi() -> None:
    program = (
        "import sys; import lockstep_worker.__main__; "
        "import lockstep_worker.supervisor.supervise, lockstep_worker.supervisor.sshd; "
        "print([name for name in ('torch', 'mpi4py', 'fastapi', 'numpy', 'transformers') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert result.stdout.strip() == "[]", shlex.quote(result.stderr)
