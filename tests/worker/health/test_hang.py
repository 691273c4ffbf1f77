from __future__ import annotations

import contextlib
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_worker.health.hang import Hang, HangDetector

TIMEOUT_S = 10.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A detector on a fake clock, with every hang that it reported."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.clock, self.hangs = Clock(), list[Hang]()
        self.detector = HangDetector(timeout_s, on_hang=self.hangs.append, clock=self.clock)

    def after(self, seconds: float) -> int:
        self.clock.now += seconds
        self.detector.check()
        return len(self.hangs)


def test_it_is_disarmed_until_the_first_checkpoint() -> None:
    watched = Watched()
    assert not watched.detector.armed
    with watched.detector.pause("load"):
        pass
    with watched.detector.pause("idle", beat=True):
        assert watched.after(1000) == 0
    assert watched.after(1000) == 0
    watched.detector.checkpoint()
    assert watched.detector.armed
    assert watched.after(TIMEOUT_S + 1) == 1


def test_one_lapse_is_one_call_and_the_next_lapse_is_another() -> None:
    watched = Watched()
    watched.detector.checkpoint()
    assert watched.after(TIMEOUT_S) == 0
    assert watched.after(0.1) == 1
    assert watched.after(1000) == 1
    watched.detector.checkpoint()
    assert watched.after(TIMEOUT_S + 1) == 2
    assert watched.detector.trips == 2
    assert "no progress for 11.0 s (timeout 10 s)" in watched.hangs[1].reason


def test_a_timeout_of_zero_is_off() -> None:
    watched = Watched(0)
    watched.detector.checkpoint()
    watched.detector.start()
    assert watched.after(1e6) == 0
    assert not watched.detector.armed
    assert "hang-detector" not in [thread.name for thread in threading.enumerate()]


def test_a_pause_holds_the_detector_and_its_end_counts_as_progress() -> None:
    watched = Watched()
    watched.detector.checkpoint()
    watched.clock.now += TIMEOUT_S - 1
    with watched.detector.pause("load"):
        assert watched.after(1000) == 0
    assert watched.after(TIMEOUT_S) == 0
    assert watched.after(1) == 1


def test_leaving_an_inner_pause_does_not_end_the_outer_one() -> None:
    watched = Watched()
    watched.detector.checkpoint()
    with watched.detector.pause("control"):
        with watched.detector.pause("load"):
            assert watched.after(1000) == 0
        assert watched.after(1000) == 0
        assert watched.detector.paused == "control"
    assert watched.detector.paused is None


def test_a_pause_ends_when_its_body_raises() -> None:
    watched = Watched()
    watched.detector.checkpoint()
    with contextlib.suppress(RuntimeError), watched.detector.pause("load"):
        raise RuntimeError
    assert watched.after(TIMEOUT_S + 1) == 1


def test_beats_keep_a_parked_group_alive_and_their_absence_is_a_hang() -> None:
    watched = Watched()
    watched.detector.checkpoint()
    with watched.detector.pause("idle", beat=True):
        for _ in range(10):
            assert watched.after(TIMEOUT_S - 1) == 0
            watched.detector.beat()
        assert watched.after(TIMEOUT_S + 1) == 1
    assert "no beat" in watched.hangs[0].reason
    assert "idle" in watched.hangs[0].reason


def test_a_beat_is_no_progress() -> None:
    watched = Watched()
    watched.detector.checkpoint()
    watched.clock.now += 3
    watched.detector.beat()
    assert watched.detector.seconds_since_progress() == 3
    assert watched.after(TIMEOUT_S - 2) == 1


def test_a_pause_without_beats_inside_a_parked_wait_holds_the_beats_too() -> None:
    watched = Watched()
    watched.detector.checkpoint()
    with watched.detector.pause("idle", beat=True):
        with watched.detector.pause("control"):
            assert watched.after(1000) == 0
        assert watched.after(TIMEOUT_S) == 0
        assert watched.after(1) == 1


def test_paused_seconds_grow_while_the_pause_lasts_and_go_to_the_innermost_reason() -> None:
    watched = Watched()
    clock, detector = watched.clock, watched.detector
    with detector.pause("idle", beat=True):
        clock.now += 2
        assert detector.paused_seconds() == {"idle": 2}
        with detector.pause("control"):
            clock.now += 3
            assert detector.paused_seconds() == {"idle": 2, "control": 3}
        clock.now += 4
    clock.now += 50
    assert detector.paused_seconds() == {"idle": 6, "control": 3}


def test_the_watcher_survives_a_callback_that_raises() -> None:
    hangs = threading.Semaphore(0)

    def fail(_: Hang) -> None:
        hangs.release()
        raise RuntimeError("the callback is broken")

    detector = HangDetector(0.05, on_hang=fail)
    detector.start()
    detector.start()
    try:
        for _ in range(2):
            detector.checkpoint()
            assert hangs.acquire(timeout=10)
    finally:
        detector.stop()
    assert detector.trips == 2


def test_the_last_progress_is_told_as_unix_time() -> None:
    watched = Watched()
    assert watched.detector.last_progress_timestamp() == 0
    assert watched.detector.seconds_since_progress() is None
    watched.detector.checkpoint()
    before = watched.detector.last_progress_timestamp()
    watched.clock.now += 60
    assert before - watched.detector.last_progress_timestamp() == pytest.approx(60, abs=5)


PERIOD_S = 4.0
STEPS = st.lists(
    st.sampled_from(["wait", "wait", "wait", "checkpoint", "pause", "park", "leave", "beat"]), max_size=120
)


@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_it_trips_exactly_when_the_watched_event_stays_away(steps: list[str]) -> None:
    """An own account of the rules: what is awaited now, since when, and whether that lapse was reported already."""
    watched = Watched()
    open_pauses: list[tuple[str, contextlib.AbstractContextManager[None]]] = []
    armed, progress_at, beat_at, reported = False, watched.clock.now, watched.clock.now, False
    for step in steps:
        now, before = watched.clock.now, len(watched.hangs)
        if step == "wait":
            watched.after(PERIOD_S)
            awaited = None if not armed else progress_at if not open_pauses else None
            if armed and open_pauses and open_pauses[-1][0] == "park":
                awaited = beat_at
            lapsed = awaited is not None and watched.clock.now - awaited > TIMEOUT_S
            assert len(watched.hangs) - before == int(lapsed and not reported)
            reported = reported or lapsed
            continue
        if step == "checkpoint":
            watched.detector.checkpoint()
            armed, progress_at = True, now
            reported = reported and bool(open_pauses)
        elif step == "beat":
            watched.detector.beat()
            beat_at = now
            reported = reported and not open_pauses
        elif step in ("pause", "park"):
            pause = watched.detector.pause(step, beat=step == "park")
            pause.__enter__()
            open_pauses.append((step, pause))
            beat_at, reported = now, False
        elif step == "leave" and open_pauses:
            open_pauses.pop()[1].__exit__(None, None, None)
            beat_at, reported = now, False
            progress_at = now if armed else progress_at
        assert len(watched.hangs) == before


@settings(max_examples=200, deadline=None)
@given(gaps=st.lists(st.floats(0, TIMEOUT_S - 0.001), min_size=1, max_size=50))
def test_it_never_trips_on_a_loop_that_keeps_its_time(gaps: list[float]) -> None:
    watched = Watched()
    watched.detector.checkpoint()
    for gap in gaps:
        assert watched.after(gap) == 0
        watched.detector.checkpoint()


@settings(max_examples=200, deadline=None)
@given(reasons=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e4)), min_size=1, max_size=20))
def test_it_never_trips_in_a_pause_and_no_second_is_counted_twice(reasons: list[tuple[str, float]]) -> None:
    watched = Watched()
    watched.detector.checkpoint()
    with contextlib.ExitStack() as stack:
        for reason, seconds in reasons:
            stack.enter_context(watched.detector.pause(reason))
            assert watched.after(seconds) == 0
    total = sum(seconds for _, seconds in reasons)
    assert sum(watched.detector.paused_seconds().values()) == pytest.approx(total, abs=1e-6)
