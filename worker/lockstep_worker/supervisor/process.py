"""The supervisor's one child, mpirun or a single rank, and the signals that come for it; one thread, no polling."""

from __future__ import annotations

import collections
import os
import re
import select
import signal
import subprocess
import time
from types import TracebackType
from typing import Self

from lockstep_worker.health.abort import Failure
from lockstep_worker.health.parent import die_with_parent
from lockstep_worker.supervisor.command import Launch

_STDERR = 2
_TAIL_LINES = 20
_TAIL_CHARACTERS = 2000
_LAST_OUTPUT_S = 1.0
"""How long to read on after the child's end, in case something else still holds its standard error open."""
_LOST_RANK = re.compile(r"noticed that process rank (\d+) with PID \d+ on node")
"""How mpirun 4 and 5 name a rank that a signal ended; of one that called `MPI_Abort` nothing is "noticed"."""


class Signals:
    """Collects SIGTERM and SIGINT, so that they can be waited for beside other things. For the main thread only."""

    def __enter__(self) -> Self:
        """Take the signals over."""
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        self._before = {sig: signal.signal(sig, lambda *_: None) for sig in (signal.SIGTERM, signal.SIGINT)}
        self._wakeup = signal.set_wakeup_fd(self._write)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give the signals back."""
        signal.set_wakeup_fd(self._wakeup)
        for sig, handler in self._before.items():
            signal.signal(sig, handler)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        """Readable when a signal is there."""
        return self._read

    def take(self) -> signal.Signals | None:
        """Return the oldest signal, if any."""
        try:
            return signal.Signals(os.read(self._read, 1)[0])
        except BlockingIOError:
            return None

    def wait(self, seconds: float) -> signal.Signals | None:
        """Sleep, but not beyond a signal."""
        select.select([self], [], [], seconds)
        return self.take()


class RanksProcess:
    """The running child, which is all ranks: its standard error is passed on and read for the reason of a failure."""

    def __init__(self, launch: Launch, signals: Signals) -> None:
        ours = os.getpid()
        self._signals = signals
        self._process = subprocess.Popen(
            launch.argv,
            env=launch.environ,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C of the terminal reaches us alone
            preexec_fn=lambda: die_with_parent(signal.SIGKILL, parent=ours),  # noqa: PLW1509  (this process has one thread)
        )
        assert self._process.stderr is not None
        self._stderr = self._process.stderr.fileno()
        os.set_blocking(self._stderr, False)
        self._ended = os.pidfd_open(self._process.pid)
        self._line = b""
        self._lines: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._sources = [self._ended, self._stderr, signals.fileno()]
        self.failure: Failure | None = None
        """What the first rank that failed said."""
        self.lost_rank: int | None = None
        """The rank that mpirun reports as ended by a signal."""
        self.is_alive = True

    def __enter__(self) -> Self:
        """Nothing more to do."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave nothing running."""
        self.send(signal.SIGKILL)
        self._process.wait()
        os.close(self._ended)
        if self._process.stderr is not None:
            self._process.stderr.close()

    @property
    def exit_code(self) -> int:
        """The child's exit code; 128 + n when signal n ended it."""
        code = self._process.wait()
        return 128 - code if code < 0 else code

    @property
    def tail(self) -> str:
        """The last lines of standard error, as many as a termination message can hold."""
        return "\n".join(self._lines)[-_TAIL_CHARACTERS:]

    def send(self, sig: signal.Signals) -> None:
        """Send a signal to the child, SIGKILL to its whole process group; its ranks die with it."""
        if self._process.poll() is not None:
            return
        if sig is signal.SIGKILL:
            os.killpg(self._process.pid, sig)
        else:
            self._process.send_signal(sig)

    def follow(self, timeout_s: float | None) -> signal.Signals | None:
        """Wait for the child's end, output, a signal or the time; return the signal."""
        ready, _, _ = select.select(self._sources, [], [], timeout_s)
        if self._stderr in ready:
            self._read_errors()
        if self._ended in ready:
            self._read_last_errors()
            self.is_alive = False
        return self._signals.take()

    def _read_last_errors(self) -> None:
        deadline = time.monotonic() + _LAST_OUTPUT_S
        while self._stderr in self._sources and time.monotonic() < deadline:
            if select.select([self._stderr], [], [], 0.05)[0]:
                self._read_errors()
        if self._line:
            self._read_line(self._line)

    def _read_errors(self) -> None:
        data = os.read(self._stderr, 1 << 16)
        if not data:
            self._sources.remove(self._stderr)
            return
        _pass_on(data)
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._read_line(line)

    def _read_line(self, line: bytes) -> None:
        text = line.decode(errors="replace")
        self._lines.append(text)
        self.failure = self.failure or Failure.from_line(text)
        if self.lost_rank is None and (lost := _LOST_RANK.search(text)):
            self.lost_rank = int(lost[1])


def _pass_on(data: bytes) -> None:
    while data:
        try:
            data = data[os.write(_STDERR, data) :]
        except OSError:  # nobody listens any more; the ranks must not notice
            return
