"""The end of a group that has not started yet."""

from __future__ import annotations

import signal

import pytest

from support.ranks.serve_group import START_BOUND_S, ServeGroup, descendants, wait_until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600)]


@pytest.mark.parametrize("moment", ["starting 2 ranks", "loading"])
def test_sigterm_while_a_group_starts_ends_it_with_zero(moment: str) -> None:
    """Before its ranks can take a signal, and while they load; a drain is kept until the frontend can do it."""
    group = ServeGroup()
    try:
        wait_until(lambda: moment in group.log, START_BOUND_S, lambda: group.log)
        group.pids = descendants(group.process.pid)
        group.process.send_signal(signal.SIGTERM)
        assert group.wait_end(bound_s=START_BOUND_S) == 0, group.log
        assert "Traceback" not in group.log
    finally:
        group.close()
