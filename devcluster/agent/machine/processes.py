"""Starts and ends real processes: a pod's first one, its containers, and commands inside them.

Every process asks the kernel to be killed with the agent's main thread, so the agent must start them from there.
Knows command lines (`sandbox`) and process ids, no Kubernetes object.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from devcluster.agent.decisions import sandbox
from devcluster.agent.errors import AgentError

START_TIMEOUT_S = 30
OUTPUT_LIMIT_BYTES = 16 * 1024


class PauseProcess:
    """Holds the network, UTS, IPC and mount namespaces that a pod's containers share."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, hostname: str, memory_mounts: Sequence[str]) -> PauseProcess:
        """Make the namespaces.

        Raises:
            AgentError: with the words of the program that failed.
        """
        pipe = asyncio.subprocess.PIPE
        command = sandbox.pause_command(hostname, memory_mounts)
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        assert process.stdout is not None and process.stderr is not None
        line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
        if line != b"ready\n":
            raise AgentError(f"pod sandbox: {(await process.stderr.read()).decode(errors='replace').strip()}")
        return cls(process)

    @property
    def pid(self) -> int:
        """The process whose namespaces they are."""
        return self._process.pid

    async def stop(self) -> None:
        """End the namespaces, once no container uses them."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class ContainerProcess:
    """One run of a container; `pid` is its first process as this machine numbers it, 0 if that ended at once."""

    def __init__(
        self, process: asyncio.subprocess.Process, status: _StatusPipe, pid: int, plan: sandbox.ContainerPlan
    ) -> None:
        self.pid = pid
        self._process = process
        self._status = status
        self._plan = plan

    @classmethod
    async def start(cls, plan: sandbox.ContainerPlan, *, pause_pid: int, log_path: Path) -> ContainerProcess:
        """Start a container; its output is appended to `log_path`.

        Raises:
            AgentError: the container could not be made; says why.
        """
        reader, writer = os.pipe()
        args = _memory_file(sandbox.bwrap_arguments(plan, status_fd=writer))
        output = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # The container's user may open /dev/stdout, as with a container runtime.
        os.fchown(output, plan.identity.uid, plan.identity.gid)
        command = sandbox.container_command(plan, pause_pid=pause_pid, args_fd=args)
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=(writer, args)
            )
        finally:
            for descriptor in (writer, args, output):
                os.close(descriptor)
        status = await _StatusPipe.open(reader)
        pid = await status.started_pid(process.pid)
        if pid is None:
            await process.wait()
            status.close()
            raise AgentError(f"container could not be made: {tail(log_path, 500).strip()}")
        return cls(process, status, pid, plan)

    async def wait(self) -> int:
        """Wait for the end; 128 plus the signal's number where a signal ended it."""
        code = await self._process.wait()
        self._status.close()
        return 128 - code if code < 0 else code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the container's first process, if it still runs."""
        if self._process.returncode is None and self.pid:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    async def run(self, command: Sequence[str], timeout_s: float) -> tuple[int, str]:
        """Run a command inside; returns its exit code and what it printed, or 124 when it took too long."""
        line = sandbox.exec_command(command, self._plan.identity, pid=self.pid)
        process = await asyncio.create_subprocess_exec(
            *line,
            env=dict(self._plan.env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), timeout_s)
        except TimeoutError:
            process.kill()
            await process.wait()
            return 124, f"command timed out after {timeout_s:g} s"
        assert process.returncode is not None
        return process.returncode, output[:OUTPUT_LIMIT_BYTES].decode(errors="replace")


def tail(path: Path, limit: int) -> str:
    """Read a file's last `limit` bytes; a missing file is empty."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - limit))
            return file.read(limit).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _memory_file(words: Sequence[str]) -> int:
    """Put arguments where `bwrap --args` reads them; returns the descriptor."""
    descriptor = os.memfd_create("bwrap-args")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(b"".join(word.encode() + b"\0" for word in words))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class _StatusPipe:
    """What bubblewrap tells about itself; open as long as it runs, for it dies when it writes to a closed pipe."""

    def __init__(self, stream: asyncio.StreamReader, transport: asyncio.BaseTransport) -> None:
        self._stream = stream
        self._transport = transport

    @classmethod
    async def open(cls, descriptor: int) -> _StatusPipe:
        """Take the pipe's reading end over."""
        stream, pipe = asyncio.StreamReader(), os.fdopen(descriptor, "rb")
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
        return cls(stream, transport)

    async def started_pid(self, nsenter_pid: int) -> int | None:
        """Wait until a container's command runs, or has run already; None when bubblewrap failed to get there.

        The first line comes when there is a process for the command; one with the exit code follows, but only if the
        command was reached. The process id in it is the pod's own number: this machine's is that of nsenter's
        grandchild.
        """
        if not await self._stream.readline():
            return None
        pid = _only_child(_only_child(nsenter_pid))
        while pid and _is_bubblewrap(pid):
            await asyncio.sleep(0.005)
        if (not pid or _program(pid) is None) and b"exit-code" not in await self._stream.read():
            return None
        return pid

    def close(self) -> None:
        """Close the pipe, once bubblewrap ended."""
        self._transport.close()


def _only_child(pid: int) -> int:
    """Return a process's child, or 0 when one of both ended; 0 is nobody's process id, and nobody's parent."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return int(children[0]) if children else 0


def _is_bubblewrap(pid: int) -> bool:
    """Say whether a process is still at work on the container, before it becomes the container's command."""
    program = _program(pid)
    return program is not None and program.endswith("/bwrap")


def _program(pid: int) -> str | None:
    """Return the program that a process runs; None when it ended."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return None
