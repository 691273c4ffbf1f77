"""What ranks compile is kept in the folder that an option names, and a second start finds it there."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep_worker import contract
from lockstep_worker.__main__ import main
from lockstep_worker.compile_cache import find_cache_faults
from lockstep_worker.config import Config
from lockstep_worker.supervisor.command import Mpirun, Surroundings, build_mpirun, build_rank

NAMES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
READ_ONLY = Path("/proc")
"""Nobody may make a file there, root neither."""


def around(**environ: str) -> Surroundings:
    return Surroundings(sys.executable, environ={"PATH": "/bin", **environ}, is_root=False, has_gpu=False)


def start_rank(cache: Path) -> dict[str, Any]:
    """What a rank of such a group says that it found; see `compiling_rank`."""
    config = Config(model="m", compile_cache=str(cache))
    environ = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    rank = build_rank(config, around(**environ), module="support.ranks.compiling_rank", mpi=False)
    done = subprocess.run(rank.argv, env=rank.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_rank_finds_the_folder_before_it_imports_triton_and_the_second_start_what_the_first_compiled(
    tmp_path: Path,
) -> None:
    first, second = start_rank(tmp_path), start_rank(tmp_path)
    folders = [str(tmp_path / "triton"), str(tmp_path / "inductor")]
    for found in (first, second):
        assert found["early"] == []
        assert found["variables"] == folders
        assert found["inductor"] == folders[1]
    assert (first["hit"], second["hit"]) == (False, True)
    assert list((tmp_path / "triton").glob("*/*.cubin"))


def test_the_option_wins_over_the_environment_and_goes_to_every_host() -> None:
    config = Config(model="m", tensor_parallel=2, compile_cache="/cache")
    on_hosts = dataclasses.replace(around(TRITON_CACHE_DIR="/mine"), hostfile=Path("/etc/mpi/hostfile"))
    mpirun = build_mpirun(config, on_hosts, Mpirun("/usr/bin/mpirun", 4))
    assert [mpirun.environ[name] for name in NAMES] == ["/cache/triton", "/cache/inductor"]
    for name in NAMES:
        assert mpirun.argv[mpirun.argv.index(name) - 1] == "-x"


def test_without_the_option_the_libraries_own_folders_hold() -> None:
    environ = build_rank(Config(model="m"), around(TRITON_CACHE_DIR="/mine"), mpi=False).environ
    assert [environ.get(name) for name in NAMES] == ["/mine", None]


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("cache", "cache is not an absolute path"),
        ("/nowhere/cache", "/nowhere/cache is not a directory"),
        (str(READ_ONLY), f"cannot write to {READ_ONLY}: "),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_with_the_options_name(
    folder: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--model", str(tmp_path), "--compile-cache", folder]) == contract.EXIT_CONFIG
    assert f"compile_cache: {words}" in capsys.readouterr().err


def test_a_subfolder_that_cannot_be_written_is_refused_too(tmp_path: Path) -> None:
    assert list(find_cache_faults(str(tmp_path))) == []
    (tmp_path / "triton").touch()
    assert list(find_cache_faults(str(tmp_path))) == [
        f"compile_cache: cannot write to {tmp_path}/triton: Not a directory"
    ]
    assert [one.name for one in tmp_path.iterdir()] == ["triton"]  # looking leaves nothing behind


def test_a_rank_refuses_a_folder_that_its_own_host_lacks(tmp_path: Path) -> None:
    """The supervisor looks on one host, ranks may be on others."""
    config = Config(model=str(tmp_path), device="cpu", compile_cache=str(tmp_path / "cache"))
    rank = build_rank(config, around(**os.environ), mpi=False)
    done = subprocess.run(rank.argv, env=rank.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == contract.EXIT_CONFIG, done.stderr
    assert f"compile_cache: {tmp_path}/cache is not a directory" in done.stderr


def test_the_benchmarks_of_a_step_use_the_folder_too(tmp_path: Path) -> None:
    program = (
        "import os; from lockstep_worker.__main__ import main; "
        f"main(['bench', 'decode', '--shape', 'tiny', '--prompt', '4', '--output', '2', '--batch', '1', '--repeats', "
        f"'1', '--set', 'device=cpu', '--set', 'compile_cache={tmp_path}']); "
        "print(os.environ['TRITON_CACHE_DIR'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == str(tmp_path / "triton"), done.stderr
