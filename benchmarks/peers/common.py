"""What the engines' processes share: their arguments, how they are told a round, and how they answer.

A process prints one line when it is ready, then for each line that it reads runs a round and prints what it took. Its
standard output is the channel, so whatever its libraries print goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, TextIO

from lockstep_worker.bench.offline.shapes import SHAPES, draw_prompts

VERSIONS = ("torch", "triton", "transformers", "vllm")


@dataclass(frozen=True, slots=True)
class Round:
    """Requests that start together and differ in nothing but their prompts and seeds."""

    batch: int
    prompt: int
    output: int
    """Tokens of each request."""
    temperature: float
    seed: int
    """Of the prompts."""

    def prompts(self, shape: str) -> list[list[int]]:
        """Draw the prompts, the same for every engine."""
        return draw_prompts(shape, self.batch, self.prompt, self.seed)


@dataclass(frozen=True, slots=True)
class Limits:
    """What every engine is given alike."""

    shape: str
    max_sequences: int
    context: int
    """Tokens that a request may have."""
    cache_tokens: int
    """Tokens that the KV cache holds."""
    batched_tokens: int = 8192
    """Most tokens of one step."""

    @classmethod
    def from_command_line(cls) -> Limits:
        """Read them from this process's arguments; the engine's own ones stay in `own_flags`."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--limits", required=True, type=json.loads)
        return cls(**parser.parse_known_args()[0].limits)

    def to_json(self) -> str:
        """Write them for a process's command line."""
        return json.dumps(asdict(self))

    @property
    def config(self) -> dict[str, Any]:
        """What `config.json` would hold."""
        return dict(SHAPES[self.shape])


def own_flags() -> dict[str, Any]:
    """Read the engine's own flags: `--flags` with a JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--flags", default={}, type=json.loads)
    flags: dict[str, Any] = parser.parse_known_args()[0].flags
    return flags


def open_channel() -> TextIO:
    """Keep standard output for the answers, and send what else is printed to standard error."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return channel


def read_rounds() -> Iterator[Round]:
    """Yield rounds as they are asked for, until the input ends."""
    for line in sys.stdin:
        yield Round(**json.loads(line))


def tell_ready(channel: TextIO, engine: str, flags: dict[str, Any], start_s: float) -> None:
    """Say that the engine is loaded, what it is, and how it was told to run."""
    versions = {name: _version(name) for name in VERSIONS}
    line = {"engine": engine, "versions": versions, "flags": flags, "start_s": round(start_s, 1)}
    print(json.dumps(line, default=str), file=channel, flush=True)


def tell_round(channel: TextIO, asked: Round, tokens: int, seconds: float) -> None:
    """Answer a round; all its tokens must have come."""
    assert tokens == asked.batch * asked.output, f"{tokens} tokens came of {asked}"
    print(json.dumps({"seconds": seconds}), file=channel, flush=True)


def serve(channel: TextIO, run: Callable[[Round], tuple[int, float]]) -> None:
    """Answer rounds by a function that returns their tokens and seconds."""
    for asked in read_rounds():
        tell_round(channel, asked, *run(asked))


def timed(function: Callable[[], int]) -> tuple[int, float]:
    """Return what a function returns, and the seconds that it took."""
    start = time.perf_counter()
    value = function()
    return value, time.perf_counter() - start


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
