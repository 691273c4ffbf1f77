"""The command line that is written from options' names, and the worker's own parser that reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep_worker import contract
from lockstep_worker.__main__ import build_parser
from lockstep_worker.config import Config, given_flags, load_config
from lockstep_worker.contract.option import Option, options_of
from lockstep_worker.contract.serve import ServeOptions, serve_command, written_flags

OPTIONS = options_of(ServeOptions)
SAMPLES = {int: 2000, float: 0.5, str: "x"}


def understood(command: list[str]) -> Config:
    assert command[0] == f"{contract.IMAGE_ROOT}/bin/lockstep-worker"
    arguments, unknown = build_parser().parse_known_args(command[1:])
    return load_config(given_flags(arguments), {}, unknown=unknown)


def another_value(option: Option) -> object:
    """A value that is not the default and within the limits."""
    if option.kind is bool:
        return not option.default
    if choices := option.metadata.get("choices"):
        return choices[-1]
    return min(SAMPLES[option.kind], option.metadata["high"]) if "high" in option.metadata else SAMPLES[option.kind]


def test_the_operators_command_line_is_understood(tmp_path: Path) -> None:
    command = serve_command(
        {
            "host": "0.0.0.0",
            "model": str(tmp_path),
            "served_model_name": "small",
            "tensor_parallel": 2,
            "max_model_len": 256,
            "dtype": "float32",
            "max_batch_size": 8,
            "max_num_tokens": 128,
            "kv_cache_memory_fraction": 0.5,
            "overlap": False,
            "hang_timeout": 30,
            "drain_timeout": 10.5,
        },
        extra_args=("--debug-checks",),
    )
    assert understood(command) == Config(
        model=str(tmp_path),
        served_model_name="small",
        host="0.0.0.0",
        tensor_parallel=2,
        max_model_len=256,
        dtype="float32",
        max_batch_size=8,
        max_num_tokens=128,
        kv_cache_memory_fraction=0.5,
        overlap=False,
        hang_timeout=30.0,
        drain_timeout=10.5,
        debug_checks=True,
    )


@pytest.mark.parametrize(
    "option", [option for option in OPTIONS.values() if option.name != "model"], ids=lambda o: o.name
)
def test_what_is_written_of_an_option_is_what_is_read(option: Option, tmp_path: Path) -> None:
    value = another_value(option)
    if option.name == "api_key_file":
        value = str(tmp_path / "key")
        Path(value).touch()
    if option.name == "compile_cache":
        value = str(tmp_path)
    command = serve_command({"model": str(tmp_path), option.name: value})
    assert [option.written_flag] == [word for word in command[4:] if word.startswith("--")]
    assert getattr(understood(command), option.name) == value


def test_flags_stand_in_the_order_given_and_extra_words_behind_them() -> None:
    command = serve_command({"port": 1, "overlap": False, "model": "m"}, ["--routing", "auto"])
    assert command[1:] == ["serve", "--port", "1", "--no-overlap", "--model", "m", "--routing", "auto"]


def test_what_keeps_its_default_is_left_out() -> None:
    values = {"max_model_len": None, "overlap": True, "debug_checks": False, "prefix_cache": None, "max_queued": 4096}
    assert serve_command(values)[2:] == ["--max-queued", "4096"]


def test_the_flags_that_names_can_write_are_listed() -> None:
    assert written_flags(["port", "overlap", "debug_checks"]) == ["--port", "--no-overlap", "--debug-checks"]


@pytest.mark.parametrize("name", ["modle", "max-batch-size", "config"])
def test_an_option_that_is_not_there_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: .* no such option"):
        serve_command({"model": "m", name: 1})
    with pytest.raises(ValueError, match=f"{name}: .* no such option"):
        written_flags([name])


def test_the_operator_may_import_the_contract_without_the_worker() -> None:
    program = (
        "import sys; before = set(sys.modules); import lockstep_worker.contract.serve; "
        "names = {name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names; "
        "print(sorted(names), sorted(name for name in sys.modules if name.startswith('lockstep_worker.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = ["lockstep_worker.contract", "lockstep_worker.contract.option", "lockstep_worker.contract.serve"]
    assert done.stdout.strip() == f"['lockstep_worker'] {modules}"
