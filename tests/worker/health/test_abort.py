"""How a rank ends. Each case is a real process, because the end of one is what is tested."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from lockstep_worker import contract
from lockstep_worker.health.abort import FAILURE_MARK, Failure
from lockstep_worker.health.bounded import run_bounded
from lockstep_worker.health.diagnose import diagnose
from lockstep_worker.health.parent import is_orphan

BOUND_S = 30.0


def run_program(program: str, stdin: int | None = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    code = "import os, signal, sys, threading, time\nfrom lockstep_worker import contract\n"
    code += "from lockstep_worker.health.abort import CrashGuard, end_group\n" + textwrap.dedent(program)
    return subprocess.run(
        [sys.executable, "-c", code], stdin=stdin, capture_output=True, text=True, timeout=BOUND_S, check=False
    )


def failure_in(text: str) -> Failure:
    found = [failure for line in text.splitlines() if (failure := Failure.from_line(line))]
    assert len(found) == 1, text
    return found[0]


def test_a_rank_ends_with_its_exit_code_its_reason_and_its_stacks() -> None:
    result = run_program("""
        def stuck(): time.sleep(60)
        threading.Thread(target=stuck, daemon=True).start()
        end_group(contract.EXIT_HANG, "no progress", rank=3, mpi_abort=None, notify=lambda text: print("told", text),
                  state=lambda: "step 17")
    """)
    assert result.returncode == contract.EXIT_HANG
    assert failure_in(result.stderr) == Failure("Hang", contract.EXIT_HANG, 3, "no progress")
    assert "in stuck" in result.stderr
    assert "step 17" in result.stderr


def test_nothing_that_is_only_useful_can_stop_the_kill() -> None:
    started = time.monotonic()
    result = run_program("""
        def block(*_): time.sleep(60)
        end_group(contract.EXIT_HANG, "no progress", rank=0, mpi_abort=block, notify=block, state=block)
    """)
    assert result.returncode == contract.EXIT_HANG
    assert time.monotonic() - started < BOUND_S / 2


def test_whatever_notify_and_mpi_abort_raise_the_exit_code_stays() -> None:
    result = run_program("""
        def fail(*_): raise RuntimeError("broken")
        end_group(contract.EXIT_RANK_CRASH, "x", rank=0, mpi_abort=fail, notify=fail, state=fail)
    """)
    assert result.returncode == contract.EXIT_RANK_CRASH


def test_the_group_ends_from_a_thread_while_the_main_thread_is_stuck() -> None:
    result = run_program("""
        end = lambda: end_group(contract.EXIT_HANG, "stuck", rank=0, mpi_abort=lambda code: os._exit(code), notify=None)
        threading.Thread(target=end).start()
        time.sleep(60)
    """)
    assert result.returncode == contract.EXIT_HANG


def test_the_kernel_ends_a_rank_whose_interpreter_is_locked_by_a_c_call() -> None:
    result = run_program("""
        import ctypes
        from lockstep_worker.health import abort
        abort._LAST_RESORT_S = 1.0
        hold_the_lock = lambda code: ctypes.PyDLL(None).sleep(60)
        end_group(contract.EXIT_HANG, "stuck", rank=0, mpi_abort=hold_the_lock, notify=None)
    """)
    assert result.returncode == -signal.SIGALRM
    assert failure_in(result.stderr).exit_code == contract.EXIT_HANG


def test_a_crashed_loop_ends_the_group_even_if_its_clean_up_blocks() -> None:
    result = run_program("""
        told = lambda text: os.write(2, f"told: {text}\\n".encode())
        guard = CrashGuard(rank=1, mpi_abort=None, notify=told, grace_s=0.2)
        try:
            raise KeyError("slot 7")
        except KeyError as error:
            guard.arm(error)
            time.sleep(60)
    """)
    assert result.returncode == contract.EXIT_RANK_CRASH
    assert failure_in(result.stderr).message == "rank 1 failed: KeyError: 'slot 7'"
    assert "told: rank 1 failed: KeyError: 'slot 7'" in result.stderr


def test_a_crashed_loop_may_clean_up_within_its_grace() -> None:
    result = run_program("""
        guard = CrashGuard(rank=1, mpi_abort=None, notify=None)
        guard.arm(ValueError("x"))
        print("cleaned", flush=True)
        guard.end()
    """)
    assert (result.returncode, result.stdout) == (contract.EXIT_RANK_CRASH, "cleaned\n")


@pytest.mark.parametrize("line", ["", "plain", FAILURE_MARK, FAILURE_MARK + "{", FAILURE_MARK + "[1]"])
def test_a_line_without_a_whole_failure_holds_none(line: str) -> None:
    assert Failure.from_line(line) is None


def test_a_failure_is_found_among_other_output() -> None:
    failure = Failure("Hang", 86, 2, 'a "quoted" reason\nof two lines')
    assert Failure.from_line(f"[1,2]<stderr>: {FAILURE_MARK}{failure.to_json()} and more") == failure
    assert json.loads(failure.to_json())["exitCode"] == 86


def test_a_report_holds_every_thread_and_survives_a_broken_state() -> None:
    def fail() -> str:
        raise RuntimeError("no state")

    def block() -> str:
        time.sleep(5)
        return "too late"

    assert "test_a_report_holds_every_thread" in diagnose()
    assert "no state" in diagnose(fail)
    assert "<nothing within 0.1 s>" in diagnose(block, bound_s=0.1)


def test_a_bounded_call_gives_its_value_its_error_or_nothing() -> None:
    assert run_bounded(lambda: 7, 5).value == 7
    assert isinstance(run_bounded(lambda: 1 / 0, 5).error, ZeroDivisionError)
    assert not run_bounded(lambda: time.sleep(5), 0.05).done


PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
print(child.pid, child.stdout.readline(), end="", flush=True)
sys.stdin.readline()
"""


def start_family(child: str) -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout
    pid, word = parent.stdout.readline().split()
    assert word == "armed"
    return parent, int(pid)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


def test_a_child_dies_with_its_killed_parent() -> None:
    parent, child = start_family(
        "from lockstep_worker.health.parent import die_with_parent; import time; die_with_parent(); "
        "print('armed', flush=True); time.sleep(60)"
    )
    assert is_alive(child)
    parent.kill()
    parent.wait()
    assert gone_within(child, 10)


@pytest.mark.parametrize("how", ["parent=4194000", "env"])
def test_a_child_whose_parent_died_before_the_asking_dies_at_once(how: str) -> None:
    call = f"die_with_parent(signal.SIGTERM{', ' + how if how != 'env' else ''})"
    program = f"import signal, time; from lockstep_worker.health.parent import die_with_parent; {call}; time.sleep(60)"
    environ = {**os.environ, **({"LOCKSTEP_PARENT_PID": "4194000"} if how == "env" else {})}
    result = subprocess.run([sys.executable, "-c", program], env=environ, timeout=BOUND_S)
    assert result.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("actual", "expected", "init", "orphan"),
    [
        pytest.param(7, None, "systemd", False, id="some-parent"),
        pytest.param(1, None, "systemd", True, id="adopted-by-init"),
        pytest.param(1, None, "mpirun", False, id="started-by-init-that-is-mpirun"),
        pytest.param(1, 1, "lockstep-worker", False, id="started-by-init-that-is-the-supervisor"),
        pytest.param(1, 7, "mpirun", True, id="another-than-stated"),
    ],
)
def test_an_orphan_is_told_from_a_child_of_process_one(
    actual: int, expected: int | None, init: str, orphan: bool
) -> None:
    assert is_orphan(actual, expected, init=init) is orphan


def test_the_stated_parent_is_not_inherited_by_the_childs_own_children() -> None:
    program = (
        "import os; os.environ['LOCKSTEP_PARENT_PID'] = str(os.getppid()); "
        "from lockstep_worker.health.parent import die_with_parent; die_with_parent(); "
        "print('LOCKSTEP_PARENT_PID' in os.environ)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND_S)
    assert result.stdout == "False\n"
