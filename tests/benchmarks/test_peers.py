"""Engines side by side: who runs when, what becomes of one that fails, and the page that is made of it."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.peers import page, run
from benchmarks.peers.common import Limits, Round
from benchmarks.peers.run import Side, SideFailed, measure, order
from support.data.checkout import ROOT


class Counting(Side):
    """An engine whose step takes a fixed time; it may fail at a given round."""

    def __init__(self, name: str, step_s: float, log: list[tuple[str, Round]], fails_at: int = -1) -> None:
        self.name, self._step_s, self._log, self._fails_at = name, step_s, log, fails_at
        self._rounds = 0

    def seconds(self, asked: Round) -> float:
        self._rounds += 1
        if self._rounds == self._fails_at:
            raise SideFailed("out of memory")
        self._log.append((self.name, asked))
        return 0.5 + self._step_s * asked.output


def compare(sides: dict[str, Side], repeats: int = 4) -> list[dict[str, Any]]:
    return measure(sides, "0.6b", 8, 512, 256, 0.0, repeats)


def test_engines_run_there_and_back() -> None:
    assert order(["a", "b"], 4) == [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]]


def test_every_engine_is_given_the_same_rounds_in_turn_and_a_step_is_their_difference() -> None:
    log: list[tuple[str, Round]] = []
    rows = compare({"lockstep": Counting("lockstep", 0.001, log), "vllm": Counting("vllm", 0.002, log)})
    assert [row["step_ms"]["median"] for row in rows] == [1, 2]
    assert [row["tokens_per_s"] for row in rows] == [8000, 4000]
    asked = {name: [one for who, one in log if who == name] for name in ("lockstep", "vllm")}
    assert asked["lockstep"] == asked["vllm"]
    timed = [name for name, one in log if one.seed >= 0]
    assert timed[::2] == ["lockstep", "vllm", "vllm", "lockstep"] * 2
    assert [one.output for one in asked["vllm"] if one.seed >= 0] == [1, 257, 257, 1] * 2


def test_an_engine_that_fails_is_told_of_and_the_others_go_on() -> None:
    log: list[tuple[str, Round]] = []
    rows = compare({"lockstep": Counting("lockstep", 0.001, log), "vllm": Counting("vllm", 0.002, log, fails_at=5)})
    assert [row["kind"] for row in rows] == ["run", "failed"]
    assert (rows[0]["repeats"], rows[1]["reason"]) == (4, "out of memory")


def test_a_process_that_does_not_start_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    side = Side("nobodys", Limits("tiny", 1, 64, 64), {})
    with pytest.raises(SideFailed, match="No module named .*nobodys_side"):
        side.ready()
    side.close()


def test_lockstep_answers_rounds_as_they_are_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    side = Side("lockstep", Limits("tiny", 4, 64, 256), {"device": "cpu"})
    try:
        ready = side.ready()
        assert (ready["engine"], ready["flags"]["device"]) == ("lockstep", "cpu")
        for seed, temperature in ((0, 0.0), (1, 1.0)):
            assert 0 < side.seconds(Round(4, 8, 5, temperature, seed)) < 60
    finally:
        side.close()


STEPS = {"lockstep": {1: 0.6, 64: 4.0}, "vllm": {1: 1.7, 64: 3.0}, "transformers": {64: 6.0}}
ROWS: list[dict[str, Any]] = [
    {
        "kind": "start",
        "engine": "lockstep",
        "shape": "0.6b",
        "versions": {"torch": "2.11", "vllm": None},
        "flags": {"overlap": "true"},
    },
    {"kind": "absent", "engine": "other", "shape": "0.6b", "reason": "no such module"},
    *(
        {
            "kind": "run",
            "engine": engine,
            "shape": "0.6b",
            "batch": batch,
            "prompt": 512,
            "output": 256,
            "temperature": 0.0,
            "floor_ms": 0.29,
            "step_ms": {"median": step, "low": step - 0.1, "high": step + 0.1},
            "device": {"name": "H200", "clocks": {"sm_mhz": "1980"}},
        }
        for engine, steps in STEPS.items()
        for batch, step in steps.items()
    ),
]


def test_the_page_shows_losses_too_and_who_did_not_run() -> None:
    text = page.render(ROWS)
    assert "| batch | temperature | lockstep | transformers | vllm | floor | against the best peer |" in text
    assert "| 1 | 0 | 0.600 [0.500-0.700] |  | 1.700 [1.600-1.800] | 0.29 | 2.83x |" in text
    assert "| 0.29 | 0.75x, **behind** |" in text
    assert "**other** did not run (0.6b): no such module" in text
    assert "with torch 2.11; flags" in text


def test_a_later_run_of_the_same_workload_counts() -> None:
    again = [row | {"step_ms": {"median": 0.5, "low": 0.5, "high": 0.5}} for row in ROWS if row["kind"] == "run"]
    assert {one["step_ms"]["median"] for one in page.latest([*ROWS, *again])} == {0.5}


def test_the_plot_has_a_bar_for_each_run_as_long_as_its_step() -> None:
    root = ElementTree.fromstring(page.plot("0.6b", ROWS))
    bars = [one for one in root.iter() if one.tag.endswith("rect")][1:]
    assert len(bars) == 5
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert widths[0] / widths[1] == pytest.approx(0.6 / 1.7, rel=0.01)


def test_the_section_stands_between_the_pages_marks() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    once = page.insert(text, "one\n")
    assert page.insert(once, "two\n") == once.replace("one\n", "two\n")
    assert once.replace(f"{page.BEGIN}\none\n{page.END}", "") != once
    assert run.SIDES[0] == page.OURS
