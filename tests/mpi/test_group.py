"""The start and the orderly end of a whole group."""

from __future__ import annotations

import signal
import time

import pytest

from support.serve_group import START_BOUND_S, ServeGroup, descendants, serve_group, wait_until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]


def test_a_drain_of_an_idle_group_ends_with_zero_within_seconds() -> None:
    with serve_group() as group:
        group.process.send_signal(signal.SIGTERM)
        assert group.wait_end(bound_s=20) == 0, group.log
        assert "Traceback" not in group.log


@pytest.mark.parametrize("moment", ["starting 2 ranks", "loading", "blocks of"])
def test_sigterm_while_the_group_starts_ends_with_zero(moment: str) -> None:
    """Before the ranks can take signals, while they load, and when the frontend has just been started."""
    group = ServeGroup()
    try:
        wait_until(lambda: moment in group.log, START_BOUND_S, lambda: group.log)
        group.pids = descendants(group.process.pid)
        group.process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        assert group.wait_end(bound_s=START_BOUND_S) == 0, group.log
        assert "Traceback" not in group.log
    finally:
        group.close()
    assert time.monotonic() - start < START_BOUND_S
