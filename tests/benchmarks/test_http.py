"""Servers side by side over HTTP: what is asked of them, what is made of the answers, and one small real run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.peers import http, http_page, page
from benchmarks.peers.checkpoint import write_checkpoint
from benchmarks.peers.common import Limits
from benchmarks.peers.figures import find_errors, find_figures, sum_up
from benchmarks.peers.http import Load, choose_limits, judge, measure
from benchmarks.peers.load import Clients, Seen
from benchmarks.peers.servers import Server, ServerFailed, lockstep_flags, to_words, vllm_flags
from benchmarks.peers.workloads import LENGTHS, Lane, Workload
from lockstep_worker.bench.offline.shapes import SHAPES
from lockstep_worker.bench.serving.client import Target
from lockstep_worker.bench.serving.timing import Timeline

SMALL = {
    "steady": [16, 12],
    "ttft": [16, 3],
    "1k1k": [20, 10],
    "8k1k": [40, 10],
    "arrivals": [16, 900],
    "arriving": [200, 2],
}


def lane_of(*events: float, tokens: int = 0, start: float = 10.0) -> list[Timeline]:
    """A lane with one request that had these events."""
    return [Timeline(start, events[-1], events, prompt_tokens=4, output_tokens=tokens or len(events))]


def test_lanes_are_the_same_for_every_server_and_differ_from_repeat_to_repeat() -> None:
    load = Workload("8k1k", 4, LENGTHS, per_client=3)
    assert load.lanes(0) == load.lanes(0)
    orders = [order for seed in (0, 1) for lane in load.lanes(seed) for order in lane.orders]
    assert len({tuple(order.draw(500)[:9]) for order in orders}) == len(orders) == 24  # not even a beginning is shared
    assert all(6554 <= order.prompt <= 8192 and 820 <= order.output <= 1024 for order in orders)
    assert len({order.prompt for order in orders}) > 12


def test_long_prompts_arrive_one_a_second_while_streams_run() -> None:
    lanes = Workload("arrivals", 3, LENGTHS, seconds=2).lanes(0)
    assert [(lane.start_s, lane.cut_s) for lane in lanes[:3]] == [(0.0, 4.0)] * 3
    assert [(lane.start_s, lane.orders[0].prompt) for lane in lanes[3:]] == [(2.0, 8192), (3.0, 8192)]


def test_limits_hold_the_largest_load_or_what_the_memory_holds() -> None:
    loads = [Workload("steady", 64, LENGTHS), Workload("1k1k", 16, LENGTHS)]
    roomy = choose_limits("8b", loads, 40.0)
    assert (roomy.max_sequences, roomy.context, roomy.cache_tokens) == (64, 2064, 64 * (768 + 16))
    tight = choose_limits("8b", loads, 1.0)
    assert tight.cache_tokens == 2**30 // (4 * 36 * 8 * 128)


def test_both_servers_get_the_same_limits() -> None:
    limits = Limits("8b", 256, 2064, 160_000)
    ours, theirs = lockstep_flags(limits, {"graphs": False}), vllm_flags(limits, {"api_server_count": 4})
    assert (ours["max_batch_size"], ours["max_num_tokens"], ours["max_model_len"]) == (256, "8192", "2064")
    assert (theirs["max_num_seqs"], theirs["max_num_batched_tokens"], theirs["max_model_len"]) == (256, 8192, 2064)
    assert (ours["prefix_cache"], theirs["enable_prefix_caching"]) == (False, False)
    assert theirs["num_gpu_blocks_override"] == 10_000 <= int(ours["num_blocks"])
    assert "load_format" not in theirs
    words = to_words({"no_thing": 3, "prefix_cache": False, "quiet": True, "config": {"sizes": [1]}})
    assert words == ["--no-thing", "3", "--no-prefix-cache", "--quiet", "--config", '{"sizes": [1]}']


def test_figures_of_streams_that_start_together() -> None:
    load = Workload("steady", 2, LENGTHS)
    seen = Seen(10.0, [lane_of(11.0, 12.0, 13.0, 14.0), lane_of(12.0, 14.0, 16.0, tokens=6)], 0.1)
    figures = find_figures(load, seen)
    assert (figures["ttft_ms"], figures["ttft_p99_ms"]) == (1000, 2000)
    assert (figures["inter_token_ms"], figures["inter_token_p99_ms"]) == (1000, 2000)
    assert figures["time_per_token_ms"] == pytest.approx((1000 + 800) / 2)
    assert figures["tokens_per_s"] == 10 / 6
    assert figures["tokens_per_event"] == 10 / 7
    assert figures["steady_tokens_per_s"] == (2 + 1 * 2) / 2  # between 12 and 14 s, the second stream has two an event


def test_figures_of_a_closed_loop_are_of_a_user_and_of_the_gpu() -> None:
    load = Workload("1k1k", 1, LENGTHS)
    seen = Seen(10.0, [[*lane_of(11.0, 11.5, 12.0), *lane_of(13.0, 13.5, 14.0, start=12.0)]], 0.1)
    figures = find_figures(load, seen)
    assert (figures["tokens_per_s_user"], figures["tokens_per_s"], figures["all_tokens_per_s"]) == (2, 6 / 4, 14 / 4)


def test_gaps_count_only_while_long_prompts_arrive() -> None:
    load = Workload("arrivals", 1, LENGTHS, seconds=1)
    stream = [Timeline(10.0, 13.6, (10.5, 11.5, 12.1, 12.2, 12.9, 13.6), is_cut=True)]
    figures = find_figures(load, Seen(10.0, [stream, lane_of(12.4, 12.5, start=12.0)], 0.1))
    assert (figures["inter_token_ms"], figures["inter_token_p99_ms"]) == pytest.approx((700, 700))
    assert figures["arriving_ttft_ms"] == pytest.approx(400)


def test_failures_are_written_down_beside_what_succeeded() -> None:
    load = Workload("ttft", 2, LENGTHS)
    seen = Seen(10.0, [lane_of(11.0, 12.0), [Timeline(10.0, 11.0, error="HTTP 500: no")]], 0.1)
    row = judge(load, [seen, seen])
    assert (row["kind"], row["failures"], row["errors"]) == ("served", 2, ["HTTP 500: no"])
    nothing = Seen(10.0, [[Timeline(10.0, 11.0, error="refused")]], 0.1)
    assert judge(load, [nothing]) == {"kind": "failed", "reason": "no request succeeded: refused"}
    assert find_errors([nothing]) == ["refused"]
    assert sum_up([{"a": 1.0}, {"a": 3.0}]) == {"a": {"median": 2.0, "low": 1.0, "high": 3.0}}


class Scripted(Server):
    """A server that only has a name and may have ended."""

    def __init__(self, name: str, ends_after: int = 99) -> None:
        self.name, self.port, self._left = name, len(name), ends_after

    def check(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ServerFailed("ended with 1: out of memory")


class Noting(Clients):
    """Clients that note whom they ask."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def send(self, target: Target, vocab_size: int, lanes: Any, timeout_s: float) -> Seen:
        first: Lane = lanes[0]
        self.asked.append((target.port, first.orders[0].output))
        return Seen(10.0, [lane_of(11.0, 12.0) for _ in lanes], 0.1)


def test_servers_take_turns_there_and_back_after_a_warm_up() -> None:
    clients = Noting()
    load, ours, theirs = Load(clients, "tiny", 0.0, 1.0), Scripted("a"), Scripted("bb")
    rows = measure(load, [ours, theirs], Workload("steady", 2, LENGTHS), 4)
    assert clients.asked == [(1, 16), (2, 16), *((port, 256) for port in (1, 2, 2, 1, 1, 2, 2, 1))]
    assert [(row["engine"], row["kind"], row["repeats"]) for row in rows] == [("a", "served", 4), ("bb", "served", 4)]


def test_a_server_that_ends_is_told_of_and_the_others_go_on() -> None:
    load = Load(Noting(), "tiny", 0.0, 1.0)
    rows = measure(load, [Scripted("a"), Scripted("bb", 2)], Workload("steady", 2, LENGTHS), 4)
    assert [row["kind"] for row in rows] == ["served", "failed"]
    assert (rows[0]["repeats"], rows[1]["reason"]) == (4, "ended with 1: out of memory")


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    server = Server("lockstep", tmp_path, Limits("tiny", 2, 64, 256), {"device": "cpu"}, "", tmp_path / "log")
    try:
        with pytest.raises(ServerFailed, match="has no config.json"):
            server.wait_ready(60)
    finally:
        server.close()


def run_http(out: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run the command with these arguments, and read what it wrote."""
    before, sys.argv = sys.argv, ["http", "--shape", "tiny", "--out", str(out), *arguments]
    try:
        http.main()
    finally:
        sys.argv = before
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_lockstep_serves_all_loads_from_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_checkpoint("tiny", tmp_path / "model", device="cpu")
    rows = run_http(
        tmp_path / "rows.jsonl",
        *("--workload", "steady:3", "ttft:2", "1k1k:1,2", "8k1k:1", "arrivals:2"),
        *("--sides", "lockstep,vllm", "--apart", "--repeats", "1", "--processes", "2", "--seconds", "1"),
        *("--lengths", json.dumps(SMALL), "--checkpoint", str(folder)),
        *("--flags", json.dumps({"lockstep": {"device": "cpu"}})),
    )
    kinds = [(row["kind"], row["engine"], row.get("workload"), row.get("clients")) for row in rows]
    loads = [("steady", 3), ("ttft", 2), ("1k1k", 1), ("1k1k", 2), ("8k1k", 1), ("arrivals", 2)]
    served = [("served", "lockstep", *load) for load in loads]
    assert kinds == [("server", "lockstep", None, None), *served, ("absent", "vllm", None, None)]
    assert all(row["failures"] == 0 and 0 < row["clients_busiest"] < 1.5 for row in rows[1:-1])
    figures = {(row["workload"], row["clients"]): row["figures"] for row in rows[1:-1]}
    assert 1 <= figures["steady", 3]["tokens_per_event"]["median"] <= 12
    assert figures["8k1k", 1]["all_tokens_per_s"]["median"] > 3 * figures["8k1k", 1]["tokens_per_s"]["median"]
    assert figures["arrivals", 2]["inter_token_p99_ms"]["median"] >= figures["arrivals", 2]["inter_token_ms"]["median"]
    assert "No module named" in rows[-1]["reason"]


def served(engine: str, clients: int, user: float, gpu: float, **other: Any) -> dict[str, Any]:
    values = {"tokens_per_s_user": user, "tokens_per_s": gpu, "all_tokens_per_s": 2 * gpu, "ttft_ms": 5.0}
    row = {"kind": "served", "engine": engine, "shape": "8b", "workload": "1k1k", "clients": clients, "repeats": 2}
    row |= {"lengths": {"1k1k": [1024, 1024]}, "temperature": 0.0, "apart": False, "failures": 0, "errors": []}
    figures = {name: {"median": value, "low": value - 1, "high": value + 1} for name, value in values.items()}
    return row | {"clients_busiest": 0.1, "figures": figures} | other


ROWS = [
    {"kind": "server", "engine": "vllm", "shape": "8b", "versions": {"vllm": "0.26.0"}, "flags": {"seed": 0}},
    served("lockstep", 1, 200, 190),
    served("lockstep", 64, 90, 5000),
    served("vllm", 1, 160, 150),
    served("vllm", 64, 100, 5500, failures=2, errors=["HTTP 500: <no>"]),
    {
        "kind": "failed",
        "engine": "vllm",
        "shape": "8b",
        "workload": "8k1k",
        "clients": 256,
        "reason": "ended with 1: out of memory",
    },
]


def test_the_page_shows_losses_over_http_too_and_what_failed() -> None:
    text = page.render(ROWS)
    assert "| clients | figure | lockstep | vllm | ratio |" in text
    assert "| 1 | tok/s/user, median | 200 [199-201] | 160 [159-161] | 1.25x |" in text
    assert "| 64 | output tok/s/GPU | 5000 [4999-5001] | 5500 [5499-5501] | 0.91x, **behind** |" in text
    assert "vllm, 8b 1k1k with 64 clients: 2 requests failed: HTTP 500: &lt;no&gt;" in text
    assert "**vllm** did not run (8b, 8k1k with 256 clients over HTTP): ended with 1: out of memory" in text
    assert f"({http_page.curve_name('8b', '1k1k')})" in text


def test_a_pair_of_which_one_ran_apart_is_not_compared() -> None:
    text = page.render([*ROWS, served("vllm", 1, 300, 300, apart=True)])
    assert "| 300 [299-301] | not alike: one ran apart |" in text


def test_a_curve_goes_through_every_concurrency_of_each_server() -> None:
    [group] = http_page.list_curves(ROWS)
    root = ElementTree.fromstring(http_page.draw_curve(group, ROWS))
    lines = [one.attrib["points"].split() for one in root.iter() if one.tag.endswith("polyline")]
    assert [len(points) for points in lines] == [2, 2]
    across = [[float(point.split(",")[0]) for point in points] for points in lines]
    assert across[0][0] > across[1][0] > across[1][1] > across[0][1]  # fast users are to the right


def test_a_checkpoint_holds_what_the_shape_says_and_a_token_for_each_id(tmp_path: Path) -> None:
    from safetensors import safe_open  # noqa: PLC0415
    from tokenizers import Tokenizer  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    folder = write_checkpoint("tiny", tmp_path, device="cpu")
    network, unused = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(unused.values())
    assert (network.config.vocab_size, str(network.dtype)) == (SHAPES["tiny"]["vocab_size"], "torch.bfloat16")
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert "lm_head.weight" not in weights.keys()  # noqa: SIM118 - no mapping, and it is tied
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == SHAPES["tiny"]["vocab_size"]
    assert tokenizer.decode([300, 301]).count(" ") == 2
