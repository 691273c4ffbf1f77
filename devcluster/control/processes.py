"""Starts the processes of a cluster with a log each, waits for them, and shows whose log to read on failure."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from devcluster.errors import ServerError
from devcluster.network.netns import Namespaces
from devcluster.paths import ROOT

TAIL_LINES = 15
POLL_S = 0.1


class Server:
    """One running process of the cluster."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    def check(self) -> None:
        """Does nothing while the process runs.

        Raises:
            ServerError: it ended.
        """
        code = self._process.poll()
        if code is not None:
            raise ServerError(f"{self.name} ended with exit code {code}; {self.tail()}")

    def stop(self) -> None:
        """Ends the process; a server of this cluster has nothing to save."""
        self._process.kill()
        self._process.wait()

    def tail(self) -> str:
        """The end of the log, for an error message."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return f"the end of {self.log}:\n" + "\n".join(f"  {line}" for line in lines)


class Servers:
    """All processes of one cluster, in the order of their start."""

    def __init__(self, namespaces: Namespaces, logs: Path, environment: Mapping[str, str]) -> None:
        self._namespaces = namespaces
        self._logs = logs
        self._environment = dict(environment)
        self._running: dict[str, Server] = {}

    def start(self, name: str, argv: Sequence[str], pass_fds: Sequence[int] = ()) -> Server:
        """Starts `argv` inside the cluster; its output goes to `<name>.log`."""
        log = self._logs / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                self._namespaces.inside(list(argv), ROOT),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )
        server = Server(name, process, log)
        self._running[name] = server
        return server

    def get(self, name: str) -> Server | None:
        """The running server of that name."""
        return self._running.get(name)

    def stop(self, name: str) -> None:
        """Ends one server and forgets it, so that `check` does not miss it."""
        self._running.pop(name).stop()

    def check(self) -> None:
        """Raises ServerError for the first server that ended by itself."""
        for server in self._running.values():
            server.check()

    def wait(self, what: str, true: Callable[[], bool], timeout_s: float, suspect: Server | None = None) -> None:
        """Waits until `true()`.

        Args:
            what: is waited for, for the error message.
            true: is asked ten times a second.
            timeout_s: in seconds.
            suspect: the server whose log tells most when the time is over.

        Raises:
            ServerError: a server ended, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while not true():
            self.check()
            if time.monotonic() > deadline:
                hint = f"; {suspect.tail()}" if suspect else ""
                raise ServerError(f"waited {timeout_s:.0f} s in vain until {what}{hint}")
            time.sleep(POLL_S)

    def reap(self) -> None:
        """Waits for all processes after the namespaces are gone."""
        for server in self._running.values():
            server.stop()
        self._running.clear()
