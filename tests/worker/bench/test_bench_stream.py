"""The benchmark of the stream path runs, every token that its engine sends arrives, and what is wrong is named."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lockstep_worker.__main__ import main
from lockstep_worker.bench import BenchFailed
from lockstep_worker.bench.streaming.client import Stream, read_all
from lockstep_worker.bench.streaming.measure import read_text_ids, summarize_streams

MODEL = Path(__file__).resolve().parents[3] / "models" / "recall"
PROGRAM = [sys.executable, "-m", "lockstep_worker", "bench", "stream"]


def test_every_token_of_every_stream_arrives() -> None:
    arguments = ["--model", str(MODEL), "--streams", "4", "--tokens", "50", "--json"]
    done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # the benchmark itself compares what arrived with what was sent
    assert (result["streams"], result["tokens_per_stream"]) == (4, 50)
    assert result["tokens_per_s"] > 0
    assert {"cpu", "cores", "python"} <= result["machine"].keys()


def test_figures_follow_from_the_streams() -> None:
    streams = [Stream(10.0, 11.0, 1000, 50), Stream(10.5, 12.0, 2000, 50)]
    figures = summarize_streams(streams, tokens=50, step_ms=20.0, cpu_s=0.001)
    assert figures["offered_tokens_per_s"] == 100
    assert figures["tokens_per_s"] == 50
    assert figures["lag_ms"] == 1000.0
    assert figures["cpu_us_per_token"] == 10.0
    assert figures["bytes_per_token"] == 30.0


def test_without_a_step_time_nothing_is_offered_and_nothing_lags() -> None:
    figures = summarize_streams([Stream(0.0, 1.0, 1, 5)], tokens=5, step_ms=0.0, cpu_s=0.0)
    assert (figures["offered_tokens_per_s"], figures["lag_ms"]) == (None, None)


def test_a_lost_token_fails_the_benchmark() -> None:
    with pytest.raises(BenchFailed, match="9 tokens arrived, 10 were sent"):
        summarize_streams([Stream(0.0, 1.0, 1, 9)], tokens=10, step_ms=0.0, cpu_s=0.0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(b"HTTP/1.1 503 No\r\n\r\nbusy", "503 No", id="refused"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\ndata: x", "without its usage: data: x", id="no usage"),
        pytest.param(b"HTTP/1.1", "a stream broke", id="no answer"),
    ],
)
def test_a_stream_that_goes_wrong_fails_the_benchmark(answer: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_one, args=(listener, answer))
        thread.start()
        with pytest.raises(BenchFailed, match=words):
            asyncio.run(read_all(listener.getsockname()[1], "m", streams=1, tokens=1))
        thread.join(10)


def answer_one(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(answer)


def test_the_engine_draws_text_only() -> None:
    ids = read_text_ids(MODEL)
    assert ids == [*range(3, ids[-1] + 1)]  # 0 to 2 are the model's special tokens


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--model", "nowhere"], "--model: nowhere holds no tokenizer.json", id="model"),
        pytest.param(["--model", "m", "--step-ms", "-1"], "--step-ms: '-1' is not a number", id="negative"),
        pytest.param(["--model", "m", "--step-ms", "inf"], "--step-ms: 'inf' is not a number", id="endless"),
        pytest.param(["--model", "m", "--streams", "0"], "--streams: '0' is not a whole number", id="no-streams"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "stream", *arguments]) == 64
    assert words in capsys.readouterr().err


def test_the_model_must_be_named_where_none_is_bundled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lockstep_worker.contract.BUNDLED_MODEL", str(tmp_path / "none"))
    assert main(["bench", "stream"]) == 64
    assert "required: --model" in capsys.readouterr().err
    monkeypatch.setattr("lockstep_worker.contract.BUNDLED_MODEL", str(tmp_path))
    assert main(["bench", "stream"]) == 64
    assert f"{tmp_path} holds no tokenizer.json" in capsys.readouterr().err
