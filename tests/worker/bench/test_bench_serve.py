"""The formulas on timelines made by hand, and the client against the real frontend and servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep_worker.__main__ import main
from lockstep_worker.bench.serving.client import Connection, Target
from lockstep_worker.bench.serving.measure import Load, build_target, draw_requests
from lockstep_worker.bench.serving.timing import Timeline, judge_client, quantile, summarize_level
from support.worlds.engine import say
from support.worlds.frontend import Frontend, encode, start_frontend

TARGET = Target("127.0.0.1", 0, "/v1/completions", (), {})
USAGE = '{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":null}}'


def test_latencies_and_rates_follow_from_the_timelines() -> None:
    first = Timeline(10.0, 12.0, (10.5, 11.0, 11.5, 12.0), prompt_tokens=7, output_tokens=4, cached_tokens=2)
    joined = Timeline(11.0, 14.0, (12.0, 14.0), prompt_tokens=5, output_tokens=5)
    failed = Timeline(10.0, 15.0, error="HTTP 500")
    level = summarize_level([first, joined, failed])
    assert (level["requests"], level["failures"], level["errors"]) == (3, 1, ["HTTP 500"])
    assert level["duration_s"] == 5.0  # the failed request's time counts, its tokens do not
    assert level["output_tokens_per_s"] == 9 / 5
    assert level["total_tokens_per_s"] == 21 / 5
    assert level["requests_per_s"] == 2 / 5
    assert level["cached_prompt_tokens"] == 2
    assert level["tokens_per_event"] == 1.5
    assert level["ttft_ms"] == {"mean": 750.0, "p50": 500.0, "p90": 1000.0, "p99": 1000.0}
    assert level["inter_token_ms"] == {"mean": 875.0, "p50": 500.0, "p90": 2000.0, "p99": 2000.0}
    assert level["time_per_output_token_ms"] == {"mean": 500.0, "p50": 500.0, "p90": 500.0, "p99": 500.0}
    assert level["end_to_end_ms"] == {"mean": 2500.0, "p50": 2000.0, "p90": 3000.0, "p99": 3000.0}


def test_one_token_has_no_time_per_further_token() -> None:
    level = summarize_level([Timeline(0.0, 1.0, (0.5,), output_tokens=1)])
    assert level["time_per_output_token_ms"] is None
    assert level["inter_token_ms"] is None


def test_a_level_in_which_all_failed_has_no_latencies() -> None:
    level = summarize_level([Timeline(0.0, 1.0, error="x")])
    assert (level["failures"], level["output_tokens_per_s"], level["ttft_ms"]) == (1, 0.0, None)


def test_a_quantile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [quantile(values, share) for share in (0.5, 0.9, 0.99, 1.0, 0.001)] == [50, 90, 99, 100, 1]


def test_a_client_that_is_too_near_to_its_ceiling_says_so() -> None:
    assert judge_client(100, 300)["verdict"] == "enough"
    assert "may limit" in str(judge_client(100, 299)["verdict"])


def test_the_seed_fixes_the_requests_and_no_two_levels_share_one() -> None:
    load = Load("http://h:1", "m", (1,), None, (3, 9), (1, 5), 400, 0.0, 7, 1.0)
    first, again = (list(draw_requests(load, TARGET, 8, 20)) for _ in range(2))
    assert first == again
    assert len(set(first) | set(draw_requests(load, TARGET, 1, 20))) == 40


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend() as running:
        yield running


def test_bench_serve_counts_ids_and_finds_its_own_ceiling(
    frontend: Frontend, capsys: pytest.CaptureFixture[str]
) -> None:
    frontend.engine.script = lambda request: say(encode("a") * request.params.max_tokens)(request)
    arguments = ["--url", frontend.url, "--model", "recall", "--concurrency", "1,4", "--requests", "8", "--json"]
    assert main(["bench", "serve", *arguments, "--input-length", "5:9", "--output-length", "6"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [level["concurrency"] for level in result["levels"]] == [1, 4]
    for level in result["levels"]:
        assert (level["requests"], level["failures"], level["output_tokens"]) == (8, 0, 48)
        assert 40 <= level["prompt_tokens"] <= 72
        assert 0 < level["ttft_ms"]["p50"] <= level["end_to_end_ms"]["p50"]
        assert level["client"]["ceiling_tokens_per_s"] > 0
    assert result["ignore_eos"] is True
    assert result["server"]["data"][0]["id"] == "recall"
    assert {"cpu", "lockstep", "torch"} <= result["machine"].keys()
    assert {request.params.end_ids for request in frontend.engine.requests} == {()}


def test_a_wrong_model_and_a_wrong_address_are_named(frontend: Frontend, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--url", frontend.url, "--model", "gpt"]) == 1
    assert "'gpt' does not exist" in capsys.readouterr().err
    assert main(["bench", "serve", "--url", "https://x", "--model", "m"]) == 64
    assert "http://HOST:PORT" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert main(["bench", "serve", "--url", f"http://127.0.0.1:{port}", "--model", "m"]) == 1
    assert "cannot be reached" in capsys.readouterr().err


def answer_once(parts: list[bytes], cut_s: float = math.inf) -> Timeline:
    """One request to a server that sends these parts, then closes."""

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            for part in parts:
                connection.sendall(part)

    async def ask(port: int) -> Timeline:
        connection = Connection(Target("127.0.0.1", port, "/", (), {}), timeout_s=10)
        return await connection.stream(b"POST / HTTP/1.1\r\n\r\n", cut_s)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        timeline = asyncio.run(ask(listener.getsockname()[1]))
        thread.join(10)
    return timeline


def chunked(*events: str) -> bytes:
    framed = b"".join(f"{len(event) + 8:x}\r\ndata: {event}\n\n\r\n".encode() for event in events)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


def test_a_stream_is_read_right_however_it_is_cut() -> None:
    whole = chunked('{"choices":[{"text":"a"}]}', '{"choices":[{"text":"b"}]}', USAGE, "[DONE]")
    for parts in ([whole], [whole[:90], whole[90:131], whole[131:]], [bytes([byte]) for byte in whole]):
        timeline = answer_once(parts)
        assert timeline.error is None
        assert (len(timeline.events_s), timeline.prompt_tokens, timeline.output_tokens) == (2, 3, 2)


def test_a_stream_that_is_cut_keeps_what_came() -> None:
    timeline = answer_once([chunked('{"choices":[{"text":"a"}]}', '{"choices":[{"text":"b"}]}')[:-5]], cut_s=0.0)
    assert (timeline.error, timeline.is_cut, len(timeline.events_s)) == (None, True, 2)
    whole = chunked('{"choices":[{"text":"a"}]}', USAGE, "[DONE]")
    assert not answer_once([whole], cut_s=0.0).is_cut


def test_a_request_without_a_seed_leaves_the_draw_to_the_server() -> None:
    bodies = [json.loads(TARGET.encode([1], 2, seed).partition(b"\r\n\r\n")[2]) for seed in (None, 0)]
    assert [body.get("seed") for body in bodies] == [None, 0]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(chunked('{"choices":[{"text":"a"}]}', '{"error":{"message":"hang"}}'), "hang", id="error event"),
        pytest.param(chunked('{"choices":[{"text":"a"}]}', USAGE), "ended early", id="no DONE"),
        pytest.param(chunked('{"choices":[{"text":"a"}]}', "[DONE]"), "no usage", id="no usage"),
        pytest.param(chunked('{"choices":[{"text":"a"}]}')[:-5], "Incomplete", id="cut off"),
        pytest.param(b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy", "HTTP 503: busy", id="refused"),
        pytest.param(b"nonsense\r\n\r\n", "", id="no HTTP"),
    ],
)
def test_what_goes_wrong_becomes_the_requests_error(answer: bytes, words: str) -> None:
    error = answer_once([answer]).error
    assert error is not None
    assert words in error


def test_a_key_is_read_from_its_file(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    load = Load("http://h:1/base/", "m", (1,), None, (1, 1), (1, 1), 400, 0.0, 0, 1.0, str(key))
    target = build_target(load)
    assert (target.path, target.headers) == ("/base/v1/completions", (("Authorization", "Bearer secret"),))
