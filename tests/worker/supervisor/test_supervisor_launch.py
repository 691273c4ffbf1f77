from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lockstep_worker.config import Config
from lockstep_worker.errors import ConfigError
from lockstep_worker.supervisor.command import (
    Mpirun,
    Surroundings,
    build_mpirun,
    build_rank,
    is_rank,
    parse_mpirun_version,
)

CONFIG = Config(model="/models/m", tensor_parallel=4, device="cpu")
AROUND = Surroundings(python="/env/bin/python", environ={"PATH": "/bin"}, is_root=False, has_gpu=False)
ON_HOSTS = dataclasses.replace(AROUND, hostfile=Path("/etc/mpi/hostfile"), ssh_dir=Path("/keys"), ssh_port=2222)
FIVE, FOUR = Mpirun("/env/bin/mpirun", 5), Mpirun("/usr/bin/mpirun", 4)


def value_after(argv: list[str], *words: str) -> str:
    for index in range(len(argv) - len(words)):
        if tuple(argv[index : index + len(words)]) == words:
            return argv[index + len(words)]
    raise AssertionError(f"{words} is not in {argv}")


def forwarded(argv: list[str]) -> set[str]:
    return {argv[index + 1] for index, word in enumerate(argv) if word == "-x"}


@pytest.mark.parametrize("mpirun", [FIVE, FOUR])
def test_the_ranks_get_the_configuration_and_end_together(mpirun: Mpirun) -> None:
    argv = build_mpirun(CONFIG, AROUND, mpirun).argv
    assert argv[:3] == [mpirun.path, "-n", "4"]
    assert argv[-6:-1] == ["/env/bin/python", "-m", "mpi4py", "-m", "lockstep_worker.rank"]
    assert Config.from_json(argv[-1]) == CONFIG


def test_one_host_may_hold_more_ranks_than_cores() -> None:
    assert value_after(build_mpirun(CONFIG, AROUND, FIVE).argv, "--map-by") == ":OVERSUBSCRIBE"
    assert "--oversubscribe" in build_mpirun(CONFIG, AROUND, FOUR).argv


@pytest.mark.parametrize(("mpirun", "name"), [(FIVE, "plm_ssh"), (FOUR, "plm_rsh")])
def test_hosts_are_filled_in_order_over_ssh_with_the_groups_key(mpirun: Mpirun, name: str) -> None:
    argv = build_mpirun(CONFIG, ON_HOSTS, mpirun).argv
    option = "--prtemca" if mpirun.major == 5 else "--mca"
    ssh = value_after(argv, option, f"{name}_args")
    assert value_after(argv, "--hostfile") == "/etc/mpi/hostfile"
    assert value_after(argv, "--map-by") == "slot"
    assert "--oversubscribe" not in argv
    assert value_after(argv, option, f"{name}_no_tree_spawn") == "1"
    assert ssh.startswith("-p 2222 -i /keys/id_rsa ")
    for setting in ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "BatchMode=yes", "ServerAliveInterval"):
        assert setting in ssh


def test_only_what_ranks_elsewhere_need_is_forwarded_and_no_secret() -> None:
    wanted = {
        "PATH",
        "LD_LIBRARY_PATH",
        "NCCL_DEBUG",
        "UCX_TLS",
        "OMP_NUM_THREADS",
        "CUDA_MODULE_LOADING",
        "PYTHONPATH",
    }
    others = {"HF_TOKEN", "LOCKSTEP_API_KEY_FILE", "CUDA_VISIBLE_DEVICES", "HOME", "KUBERNETES_PORT", "PYTHON_TOKENS"}
    around = dataclasses.replace(ON_HOSTS, environ=dict.fromkeys(wanted | others, "x"))
    launch = build_mpirun(CONFIG, around, FIVE)
    assert forwarded(launch.argv) == wanted | {"OMP_WAIT_POLICY"}
    assert not forwarded(build_mpirun(CONFIG, AROUND, FIVE).argv)


def test_what_mpi_operator_sets_for_version_4_does_not_reach_mpirun() -> None:
    settings = {"OMPI_MCA_orte_default_hostfile": "x", "OMPI_MCA_plm_rsh_args": "-o A=1", "OMPI_MCA_pml": "ob1"}
    launch = build_mpirun(CONFIG, dataclasses.replace(ON_HOSTS, environ=settings), FIVE)
    assert [name for name in launch.environ if name.startswith("OMPI_MCA")] == ["OMPI_MCA_pml"]


@pytest.mark.parametrize("is_root", [True, False])
def test_root_is_admitted_only_when_we_are_root(is_root: bool) -> None:
    launch = build_mpirun(CONFIG, dataclasses.replace(AROUND, is_root=is_root), FIVE)
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in launch.environ) is is_root


@pytest.mark.parametrize(
    ("device", "has_gpu", "threads"),
    [("cpu", True, "1"), ("auto", False, "1"), ("auto", True, None), ("cuda", True, None)],
)
def test_a_rank_on_a_cpu_gets_one_thread(device: str, has_gpu: bool, threads: str | None) -> None:
    around = dataclasses.replace(AROUND, has_gpu=has_gpu)
    launch = build_rank(dataclasses.replace(CONFIG, device=device), around, mpi=False)
    assert launch.environ.get("OMP_NUM_THREADS") == threads


def test_the_users_own_thread_count_holds() -> None:
    around = dataclasses.replace(AROUND, environ={"OMP_NUM_THREADS": "6"})
    assert build_rank(CONFIG, around, mpi=False).environ["OMP_NUM_THREADS"] == "6"


def test_inside_a_slurm_job_mpirun_takes_slurms_hosts() -> None:
    argv = build_mpirun(CONFIG, dataclasses.replace(AROUND, environ={"SLURM_JOB_ID": "7"}), FIVE).argv
    assert value_after(argv, "--map-by") == "slot"


@pytest.mark.parametrize(
    ("environ", "answer"),
    [
        pytest.param({}, False, id="alone"),
        pytest.param({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}, False, id="slurm-batch-script"),
        pytest.param({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, True, id="mpirun"),
        pytest.param({"PMIX_RANK": "1", "SLURM_STEP_NUM_TASKS": "4"}, True, id="srun"),
    ],
)
def test_a_process_that_a_launcher_started_is_a_rank(environ: dict[str, str], answer: bool) -> None:
    assert is_rank(environ, 4) is answer


def test_another_number_of_ranks_than_configured_is_refused_with_both() -> None:
    with pytest.raises(ConfigError, match="asks for 4 ranks, but 2 were started"):
        is_rank({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, 4)


@pytest.mark.parametrize(
    ("text", "major"), [("mpirun (Open MPI) 5.0.11\n", 5), ("mpirun (Open MPI) 4.1.6\n\nReport", 4)]
)
def test_the_version_of_open_mpi_is_read(text: str, major: int) -> None:
    assert parse_mpirun_version(text) == major


@pytest.mark.parametrize("text", ["HYDRA build details:\n    Version: 4.2", "", "mpirun (Open MPI) 3.1.0"])
def test_another_mpi_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Open MPI 4 or 5 is needed"):
        parse_mpirun_version(text)
