"""Rank 0's frontend: started as a process of its own, watched, and asked to drain.

It must not share the interpreter's lock with the loop. Its settings, the API key among them, go through its standard
input, never through its arguments.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from lockstep_worker import contract
from lockstep_worker.config import Config
from lockstep_worker.errors import ConfigError
from lockstep_worker.frontend.settings import FrontendSettings
from lockstep_worker.frontend.text.tokenizer import load_tokenizer
from lockstep_worker.model.forward import Model
from lockstep_worker.rank.link import LinkAddresses

READY_TIMEOUT_S = 10.0
_END_GRACE_S = 10.0


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
        self, config: Config, link: LinkAddresses, model: Model, max_model_len: int, *, on_death: Callable[[int], None]
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
