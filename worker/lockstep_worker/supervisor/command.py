"""Which command starts the ranks: pure decisions from configuration and surroundings, no effects.

The supervisor finds out what there is (`Mpirun`, hosts, root, GPU) and runs what this module builds.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from lockstep_worker import contract
from lockstep_worker.compile_cache import cache_variables
from lockstep_worker.config import Config
from lockstep_worker.errors import ConfigError

RANK_MODULE = "lockstep_worker.rank"
ALLOW_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""What Open MPI asks of root."""
_RANK_VARIABLES = {
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK": "SLURM_STEP_NUM_TASKS",
    "PMI_RANK": "PMI_SIZE",
}
"""Set for a process that a launcher started as one of several: who it is, and how many there are."""
_FORWARDED = re.compile(r"^(PATH|LD_LIBRARY_PATH|PYTHON[A-Z]+|(OMP|NCCL|UCX|TORCH|TORCHINDUCTOR|TRITON|CUDA)_\w+)$")
"""What ranks on other hosts need of our environment. No secrets, and nothing that differs from host to host."""
_NOT_FORWARDED = {"CUDA_VISIBLE_DEVICES"}
_OPERATORS_MPI4_SETTINGS = re.compile(r"^OMPI_MCA_(orte_|plm_rsh_)")
"""What mpi-operator sets for Open MPI 4; the command line says all of it for either version."""
_VERSION = re.compile(r"\(Open MPI\) (\d+)\.(\d+)\.(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Mpirun:
    """The launcher: its absolute path and the major version of Open MPI, 4 or 5."""

    path: str
    major: int


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """What the supervisor found around itself.

    Args:
        python: the interpreter, an absolute path that holds on every host of the group.
        environ: our own environment.
        is_root: whether we run as root, which Open MPI has to be told.
        has_gpu: whether this host has an NVIDIA GPU.
        hostfile: the hosts of an MPIJob, or None on one host.
        ssh_dir: where the group's key is.
        ssh_port: where the other hosts listen.
    """

    python: str
    environ: Mapping[str, str]
    is_root: bool
    has_gpu: bool
    hostfile: Path | None = None
    ssh_dir: Path = Path(contract.SSH_DIR)
    ssh_port: int = contract.SSH_PORT


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """The command that starts the ranks, with its whole environment."""

    argv: list[str]
    environ: dict[str, str]


def parse_mpirun_version(text: str) -> int:
    """Read the major version out of what `mpirun --version` prints.

    Raises:
        ConfigError: it is not Open MPI 4 or 5.
    """
    found = _VERSION.search(text)
    if found is None or int(found[1]) not in (4, 5):
        first = text.strip().splitlines()[0] if text.strip() else "nothing"
        raise ConfigError([f"mpirun: Open MPI 4 or 5 is needed; `mpirun --version` says: {first}"])
    return int(found[1])


def is_rank(environ: Mapping[str, str], world_size: int) -> bool:
    """Decide whether a launcher (mpirun, srun) started this process as one of the ranks.

    Raises:
        ConfigError: it did, with another number of ranks than the configuration asks for.
    """
    for rank, size in _RANK_VARIABLES.items():
        if rank not in environ:
            continue
        if environ.get(size, str(world_size)) != str(world_size):
            raise ConfigError(
                [
                    f"tensor_parallel: with data_parallel it asks for {world_size} ranks, "
                    f"but {environ[size]} were started"
                ]
            )
        return True
    return False


def build_rank(config: Config, around: Surroundings, *, module: str = RANK_MODULE, mpi: bool) -> Launch:
    """Build the command of one rank; under MPI an uncaught error must end all ranks, which `-m mpi4py` sees to."""
    under = ["-m", "mpi4py"] if mpi else []
    return Launch([around.python, *under, "-m", module, config.to_json()], _environ_of_ranks(config, around))


def build_mpirun(config: Config, around: Surroundings, mpirun: Mpirun, *, module: str = RANK_MODULE) -> Launch:
    """Build the command that starts all ranks of a group, here or over ssh on the hosts of an MPIJob."""
    rank = build_rank(config, around, module=module, mpi=True)
    environ = {name: value for name, value in rank.environ.items() if not _OPERATORS_MPI4_SETTINGS.match(name)}
    if around.is_root:
        environ |= ALLOW_ROOT
    argv = [mpirun.path, "-n", str(config.world_size), "--bind-to", "none", *_mapping(around, mpirun)]
    for name in sorted(environ if around.hostfile else ()):
        if _FORWARDED.match(name) and name not in _NOT_FORWARDED:
            argv += ["-x", name]
    return Launch([*argv, *rank.argv], environ)


def _mapping(around: Surroundings, mpirun: Mpirun) -> Iterable[str]:
    """Fill host after host in the hostfile's order, so that rank 0 is in the launcher, which clients reach."""
    if around.hostfile is None:
        if "SLURM_JOB_ID" in around.environ:  # mpirun asks SLURM for the hosts and their slots
            return ["--map-by", "slot"]
        return map_here(mpirun)
    settings = {"ssh_args": " ".join(_ssh_arguments(around)), "ssh_no_tree_spawn": "1"}
    mapped = ["--map-by", "slot", "--hostfile", str(around.hostfile)]
    if mpirun.major >= 5:
        return mapped + [word for name, value in settings.items() for word in ("--prtemca", f"plm_{name}", value)]
    for name, value in settings.items():
        mapped += ["--mca", f"plm_{name.replace('ssh', 'rsh', 1)}", value]
    return [*mapped, "--mca", "orte_keep_fqdn_hostnames", "1"]


def map_here(mpirun: Mpirun) -> list[str]:
    """Map all ranks to this host, however few cores it has."""
    return ["--map-by", ":OVERSUBSCRIBE"] if mpirun.major >= 5 else ["--map-by", "slot", "--oversubscribe"]


def _ssh_arguments(around: Surroundings) -> list[str]:
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "no",  # the hosts make new keys at each start
        "UserKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
        "IdentitiesOnly": "yes",
        "ConnectTimeout": "10",
        "ConnectionAttempts": "10",
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "4",
    }
    words = ["-p", str(around.ssh_port), "-i", str(around.ssh_dir / "id_rsa")]
    return words + [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def _environ_of_ranks(config: Config, around: Surroundings) -> dict[str, str]:
    """Name the folder of what was compiled, and keep torch's threads from fighting for the cores.

    Two threads on a busy core made a step twelve times slower.
    """
    on_cpu = config.device == "cpu" or (config.device == "auto" and not around.has_gpu)
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"} if on_cpu else {}
    return {**threads, **around.environ, **cache_variables(config.compile_cache)}
