"""`lockstep-worker serve`: the group's first process. Starts the ranks, turns signals into a drain, tells how it went.

It holds no engine and no GPU. With one rank there is no mpirun. It ends with the group's exit code and leaves the
reason in the termination message.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from lockstep_worker import contract
from lockstep_worker.config import Config
from lockstep_worker.errors import ConfigError, LockstepError
from lockstep_worker.health.abort import Failure
from lockstep_worker.health.parent import PARENT_VARIABLE
from lockstep_worker.logs import setup_logs
from lockstep_worker.supervisor.command import (
    RANK_MODULE,
    Launch,
    Mpirun,
    Surroundings,
    build_mpirun,
    build_rank,
    is_rank,
    parse_mpirun_version,
)
from lockstep_worker.supervisor.hosts import read_hosts, wait_for_hosts
from lockstep_worker.supervisor.process import RanksProcess, Signals
from lockstep_worker.supervisor.termination import judge_end, write_termination_message

log = logging.getLogger(__name__)
HOSTS_TIMEOUT_S = 300.0
DRAIN_GRACE_S = 5.0
"""How much longer than the ranks' own drain timeout the supervisor waits for them."""
STOP_GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL."""


def supervise(
    config: Config,
    environ: Mapping[str, str],
    *,
    around: Surroundings | None = None,
    rank_module: str = RANK_MODULE,
    termination_log: Path = Path(contract.TERMINATION_LOG),
) -> int:
    """Run a group to its end and return its exit code.

    Under a launcher of others (mpirun, srun) this process is a rank already, and becomes it.

    Args:
        config: the group's configuration.
        environ: our environment.
        around: what is around us; found out when not given.
        rank_module: the module that a rank runs.
        termination_log: where the termination message goes, if that file exists.
    """
    setup_logs("supervisor", config.log_level)
    around = around or look_around(environ)
    if is_rank(environ, config.world_size):
        become(build_rank(config, around, module=rank_module, mpi=True))
    with Signals() as signals:
        try:
            failure = _run(config, around, rank_module, signals)
        except LockstepError as error:
            code = contract.EXIT_CONFIG if isinstance(error, ConfigError) else contract.EXIT_FAILED
            log.error("%s", error)
            failure = Failure(contract.exit_reason(code), code, None, str(error))
    write_termination_message(failure, termination_log)
    return failure.exit_code


def look_around(environ: Mapping[str, str]) -> Surroundings:
    """Find out what the ranks' command depends on."""
    hostfile = Path(contract.HOSTFILE)
    return Surroundings(
        python=sys.executable,
        environ=environ,
        is_root=os.geteuid() == 0,
        has_gpu=Path("/dev/nvidiactl").exists(),
        hostfile=hostfile if hostfile.exists() else None,
    )


def find_mpirun(python: str) -> Mpirun:
    """Find mpirun beside the interpreter, else on PATH, and ask for its version.

    Raises:
        ConfigError: there is none, or it is not Open MPI 4 or 5.
    """
    beside = Path(python).parent / "mpirun"
    path = str(beside) if beside.exists() else shutil.which("mpirun")
    if path is None:
        raise ConfigError(["mpirun: not found beside Python or on PATH; more than one rank needs Open MPI 4 or 5"])
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Mpirun(path, parse_mpirun_version(answer.stdout))


def become(launch: Launch) -> None:
    """Replace this process by another command; comes back only by an OSError."""
    os.execve(launch.argv[0], launch.argv, launch.environ)


def _run(config: Config, around: Surroundings, rank_module: str, signals: Signals) -> Failure:
    launch = _prepare(config, around, rank_module, signals)
    if launch is None:
        return Failure(
            contract.exit_reason(contract.EXIT_OK), contract.EXIT_OK, None, "stopped before the ranks started"
        )
    with RanksProcess(launch, signals) as ranks:
        stopped = _watch(ranks, config.drain_timeout)
        return judge_end(ranks, stopped=stopped)


def _prepare(config: Config, around: Surroundings, rank_module: str, signals: Signals) -> Launch | None:
    """Build the command; None when a signal came while we waited for the hosts."""
    if config.world_size == 1:
        launch = build_rank(config, around, module=rank_module, mpi=False)
        launch.environ[PARENT_VARIABLE] = str(os.getpid())
        log.info("starting 1 rank; it imports torch first, which takes some seconds")
        return launch
    mpirun = find_mpirun(around.python)
    if around.hostfile is not None:
        hosts = read_hosts(around.hostfile)
        if not wait_for_hosts(hosts, around.ssh_port, HOSTS_TIMEOUT_S, lambda s: signals.wait(s) is not None):
            return None
    log.info(
        "starting %d ranks with %s (Open MPI %d); they import torch first, which takes some seconds",
        config.world_size,
        mpirun.path,
        mpirun.major,
    )
    return build_mpirun(config, around, mpirun, module=rank_module)


def _watch(ranks: RanksProcess, drain_timeout_s: float) -> bool:
    """Follow the ranks to their end; return whether we were asked to stop.

    The first signal drains: mpirun forwards SIGUSR1 to the ranks, while its own grace on SIGTERM is a quarter of a
    second. A Ctrl-C after that, or a drain that takes too long, ends the ranks.
    """
    stopping, killing, deadline = False, False, None
    while ranks.is_alive:
        asked = ranks.follow(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if asked is not None and not stopping:
            log.info("%s: draining for at most %g s; Ctrl-C ends at once", asked.name, drain_timeout_s)
            stopping, deadline = True, time.monotonic() + drain_timeout_s + DRAIN_GRACE_S
            ranks.send(signal.SIGUSR1)
        elif stopping and (asked is signal.SIGINT or (deadline is not None and time.monotonic() >= deadline)):
            log.warning("ending the ranks with %s", "SIGKILL" if killing else "SIGTERM")
            ranks.send(signal.SIGKILL if killing else signal.SIGTERM)
            killing, deadline = True, time.monotonic() + STOP_GRACE_S
    return stopping
