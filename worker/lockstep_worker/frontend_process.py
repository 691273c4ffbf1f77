"""Rank 0's frontend: started as a process of its own, watched, and asked to drain.

It must not share the interpreter's lock with the loop. Its settings, the API key among them, go through its standard
input, never through its arguments.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from lockstep_worker import contract
from lockstep_worker.config import Config
from lockstep_worker.dist.address import choose_address, find_own_host
from lockstep_worker.dist.comm import Comm
from lockstep_worker.errors import ConfigError
from lockstep_worker.executor.publish import Outlet
from lockstep_worker.frontend.settings import FrontendSettings, RemoteOutbound
from lockstep_worker.frontend.tokenizer import load_tokenizer
from lockstep_worker.model.forward import Model

READY_TIMEOUT_S = 10.0
_END_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class _Whereabouts:
    """What rank 0 tells its peers of the link; over MPI only, for it holds the key that other hosts connect with."""

    folder: str
    outlet: Outlet
    """For ranks on other hosts; without an address when there are none."""


@dataclass(frozen=True, slots=True)
class Link:
    """The sockets between the frontend and the ranks.

    On its host they are in a folder that only this user can enter; from other hosts ranks publish over TCP with CURVE.
    """

    folder: Path
    outlet: Outlet
    """Where this rank publishes."""
    remote: RemoteOutbound | None = None
    """On rank 0: what the frontend binds for ranks on other hosts, where there are any."""

    @classmethod
    def share(cls, comm: Comm) -> Link:
        """Make the folder, with mode 0700, and the keys on rank 0, and tell all ranks; blocking, at start."""
        hosts = comm.gather_text(socket.gethostname())
        remote, mine = None, ""
        if comm.rank == 0:
            remote, outlet = _make_keys() if len(set(hosts)) > 1 else (None, Outlet(""))
            mine = msgspec.json.encode(_Whereabouts(tempfile.mkdtemp(prefix="lockstep-"), outlet)).decode()
        told = msgspec.json.decode(comm.share_text(mine), type=_Whereabouts)
        folder, is_here = Path(told.folder), hosts[comm.rank] == hosts[0]
        return cls(folder, Outlet(f"ipc://{folder}/out") if is_here else told.outlet, remote)

    @property
    def inbound(self) -> str:
        """Frontend to rank 0."""
        return f"ipc://{self.folder}/in"

    @property
    def outbound(self) -> str:
        """Ranks to frontend."""
        return f"ipc://{self.folder}/out"

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _make_keys() -> tuple[RemoteOutbound, Outlet]:
    """Choose an address of this host and a free port on it, and make the frontend's keys and those of its peers."""
    address = f"tcp://{choose_address(find_own_host())}"
    (public, secret), (peer_public, peer_secret) = ([key.decode() for key in zmq.curve_keypair()] for _ in range(2))
    remote = RemoteOutbound(address=address, public_key=public, secret_key=secret, rank_keys=(peer_public,))
    return remote, Outlet(address, public, peer_public, peer_secret)


def check_frontend(config: Config) -> None:
    """Find what would keep the frontend from its start, before the minutes that a load may take.

    Raises:
        ConfigError: says what.
    """
    read_api_key(config.api_key_file)
    if (Path(config.model) / "config.json").is_file():  # else the load has a better word for it
        load_tokenizer(config.model)


def read_api_key(path: str | None) -> str | None:
    """Read the API key's file.

    Raises:
        ConfigError: it cannot be read or is empty.
    """
    if path is None:
        return None
    try:
        key = Path(path).read_text().strip()
    except OSError as error:
        raise ConfigError([f"api_key_file: {path} cannot be read: {error.strerror}"]) from None
    if not key:
        raise ConfigError([f"api_key_file: {path} is empty"])
    return key


class FrontendProcess:
    """The child. Start it from the main thread: its parent-death signal follows the thread that forked it.

    Args:
        config: the group's configuration.
        link: its sockets.
        model: for the limits that requests must keep.
        max_model_len: the context in force.
        on_death: called from the watcher thread with an exit code when the frontend ends unasked.
    """

    def __init__(
        self, config: Config, link: Link, model: Model, max_model_len: int, *, on_death: Callable[[int], None]
    ) -> None:
        settings = FrontendSettings(
            model_path=config.model,
            served_model_name=config.served_model_name,
            max_model_len=max_model_len,
            vocab_size=model.vocab_size,
            end_ids=model.end_ids,
            block_size=config.block_size,
            prefix_cache=config.prefix_cache,
            inbound=link.inbound,
            outbound=link.outbound,
            outbound_remote=link.remote,
            num_publishers=config.data_parallel,
            parent_pid=os.getpid(),
            host=config.host,
            port=config.port,
            api_key=read_api_key(config.api_key_file),
            max_queued=config.max_queued,
            request_timeout_s=config.request_timeout,
            drain_timeout_s=config.drain_timeout,
            ready_timeout_s=READY_TIMEOUT_S,
            log_level=config.log_level,
        )
        # The child inherits the blocked signal and takes it once it can drain; before, it would just die of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lockstep_worker.frontend"],
            stdin=subprocess.PIPE,
            env=_without_mpi(os.environ),
            start_new_session=True,  # mpirun sends its SIGUSR1 to a rank's whole process group
        )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(settings))
        self._process.stdin.close()
        self._expected = False
        self._on_death = on_death
        threading.Thread(target=self._watch, name="frontend-watch", daemon=True).start()

    def drain(self) -> None:
        """Have it refuse new work, finish what runs, and shut the loop down."""
        self._process.terminate()

    def expect_end(self) -> None:
        """From here on its end is in order."""
        self._expected = True

    def wait(self) -> None:
        """Wait for its end, for a bounded time."""
        try:
            self._process.wait(_END_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _watch(self) -> None:
        code = self._process.wait()
        if not self._expected:
            self._on_death(contract.EXIT_CONFIG if code == contract.EXIT_CONFIG else contract.EXIT_FRONTEND)


def _without_mpi(environ: os._Environ[str]) -> dict[str, str]:
    """Leave out what would make the child believe that it is a rank."""
    return {name: value for name, value in environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))}
