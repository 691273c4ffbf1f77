"""The step loop by itself, with random weights or with a canned runner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep_worker.__main__ import main
from lockstep_worker.bench.offline.ends import CountingOutlet, Scripted
from lockstep_worker.bench.offline.instruments import SilentMetrics
from lockstep_worker.bench.offline.shapes import SHAPES, draw_prompts, floor_ms
from lockstep_worker.metrics.tables import PHASES
from lockstep_worker.wire.messages import NewRequest, Shutdown, Tokens
from lockstep_worker.wire.params import SamplingParams

TINY = ["--shape", "tiny", "--prompt", "16", "--output", "12", "--set", "device=cpu"]


def test_bench_decode_times_a_step_of_each_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", *TINY, "--batch", "1,4", "--repeats", "2", "--temperature", "1"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["batch"] for line in lines] == [1, 4]
    for line in lines:
        step = line["step_ms"]
        assert step["low"] <= step["median"] <= step["high"]
        assert line["tokens_per_s"] == pytest.approx(line["batch"] / step["median"] * 1e3, rel=1e-2)
        assert line["host_ms"].keys() == set(PHASES)
        assert sum(line["host_ms"].values()) <= 2 * step["median"]
        assert {"torch", "triton", "transformers", "name", "clocks"} <= line["device"].keys()
        assert line["options"] == {"device": "cpu"}


def test_an_option_that_serve_does_not_have_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", *TINY, "--set", "speed=9"]) == 64
    assert "speed" in capsys.readouterr().err
    assert main(["bench", "decode", *TINY, "--set", "speed"]) == 64
    assert "NAME=VALUE" in capsys.readouterr().err


def test_bench_instruments_runs_every_batch_with_and_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "instruments", *TINY, "--batch", "1,4", "--repeats", "1"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["batch"] for line in lines] == [1, 4]
    for line in lines:
        assert line["on_over_off"] == pytest.approx(line["step_ms"]["on"] / line["step_ms"]["off"], rel=1e-2)


def test_silent_metrics_keep_nothing() -> None:
    metrics = SilentMetrics()
    metrics.iteration_seconds.observe(1.0)
    metrics.iterations_total[("decode",)].inc()
    metrics.iterations_total[("nobody foresaw it",)].inc()
    metrics.requests_running.set(3)
    assert metrics.iteration_seconds.sum == metrics.requests_running.value == 0
    assert [one.value for one in metrics.iterations_total.values()] == [0] * len(metrics.iterations_total)


def test_bench_loop_tells_what_each_phase_costs_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "loop", "--batch", "1,64", "--steps", "50", "--functions", "5", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    for figures in result["batches"].values():
        assert figures["us_by_phase"].keys() == set(PHASES)
        assert all(figures["us_by_phase"].values())
        assert 0 < figures["us"]["min"] <= figures["us"]["median"]
        assert figures["processor_us"] > 0
        assert len(figures["functions"]) == 5


def test_profile_writes_a_timeline_and_tables(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    assert main(["profile", *TINY, "--batch", "4", "--steps", "3", "--trace", str(trace), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    calls = {row["name"]: row["calls_per_step"] for row in result["ranges"]}
    assert {calls[name] for name in ("forward", "sample", "schedule", "update", "gather")} == {1}
    assert any("mm" in row["name"] for row in result["kernels"])
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"forward", "sample", "update"} <= {event.get("name") for event in events}


def test_a_script_goes_on_when_a_rounds_tokens_are_out_and_ends_once() -> None:
    outlet = CountingOutlet()
    rounds = [[NewRequest(1, [1], SamplingParams(max_tokens=2))], [NewRequest(1, [1], SamplingParams(max_tokens=1))]]
    steps: list[int] = []
    source = Scripted(outlet, iter(rounds), lambda: steps.append(outlet.num_tokens))
    token = Tokens.pack(0, 1, [1], [7], [0])
    taken = [source.take(), source.take()]
    outlet.send(token)
    taken.append(source.take())
    outlet.send(token)
    taken.append(source.take())
    outlet.send(token)
    taken += [source.take(), source.take()]
    assert taken == [rounds[0], [], [], rounds[1], [Shutdown()], []]
    assert steps == [0, 1]


def test_the_floor_of_a_known_shape_is_that_of_its_weights_and_cache() -> None:
    assert floor_ms("0.6b", 1, 640) == pytest.approx(0.29, abs=0.01)
    assert floor_ms("8b", 256, 640) == pytest.approx(9.1, abs=0.1)


def test_prompts_are_the_same_for_whoever_asks_alike() -> None:
    assert draw_prompts("tiny", 2, 8, 3) == draw_prompts("tiny", 2, 8, 3) != draw_prompts("tiny", 2, 8, 4)
    assert max(map(max, draw_prompts("tiny", 4, 99, 0))) < SHAPES["tiny"]["vocab_size"]
