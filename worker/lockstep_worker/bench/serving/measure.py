"""`bench serve`: an OpenAI-compatible server under closed-loop load at several concurrencies, over HTTP and streamed.

Prompts are random token ids, different in every level and fixed by the seed, so that neither a cache nor a tokenizer
takes part. A warm-up comes first. Beside each level stands what this client reaches against a server that answers at
once: figures near that ceiling are the client's and not the server's.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lockstep_worker.bench.machine import describe_machine
from lockstep_worker.bench.serving.client import Connection, Target
from lockstep_worker.bench.serving.stub import run_stub
from lockstep_worker.bench.serving.timing import Timeline, judge_client, summarize_level
from lockstep_worker.errors import ConfigError, LockstepError

_FIRST_ID = 10
"""Ids below are often special."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent."""

    url: str
    model: str
    concurrency: tuple[int, ...]
    requests: int | None
    """Of each level; None is four for each connection and at least 16."""
    input_length: tuple[int, int]
    """Least and most prompt tokens, drawn evenly."""
    output_length: tuple[int, int]
    vocab_size: int
    temperature: float
    seed: int
    timeout_s: float
    api_key_file: str | None = None

    def num_requests(self, concurrency: int) -> int:
        """How many requests a level sends."""
        return self.requests or max(4 * concurrency, 16)


def measure_serve(load: Load) -> dict[str, Any]:
    """Measure all levels.

    Raises:
        ConfigError: the URL or the key's file is wrong.
        LockstepError: the server does not answer the warm-up.
    """
    target = build_target(load)
    card = _ask(target, "/v1/models")
    with run_stub() as stub_port:
        stub = replace(target, host="127.0.0.1", port=stub_port)
        target, levels = asyncio.run(_measure_levels(load, target, stub))
    return {
        "benchmark": "serve",
        "load": asdict(load),
        "ignore_eos": "ignore_eos" in target.body,
        "levels": levels,
        "server": card,
        "machine": describe_machine(),
    }


def build_target(load: Load) -> Target:
    """Read the URL and say what all requests have in common.

    Raises:
        ConfigError: the URL or the vocabulary is wrong, or the key cannot be read.
    """
    url = urllib.parse.urlsplit(load.url)
    if url.scheme != "http" or not url.hostname:
        raise ConfigError([f"--url: {load.url!r} is not of the form http://HOST:PORT"])
    if load.vocab_size <= _FIRST_ID:
        raise ConfigError([f"--vocab-size: {load.vocab_size} is not above {_FIRST_ID}"])
    headers: tuple[tuple[str, str], ...] = ()
    if load.api_key_file is not None:
        try:
            headers = (("Authorization", f"Bearer {Path(load.api_key_file).read_text().strip()}"),)
        except OSError as error:
            raise ConfigError([f"--api-key-file: {load.api_key_file}: {error.strerror}"]) from None
    body = {
        "model": load.model,
        "temperature": load.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    return Target(url.hostname, url.port or 80, url.path.rstrip("/") + "/v1/completions", headers, body)


def draw_requests(load: Load, target: Target, level: int, count: int) -> Iterator[bytes]:
    """Yield a level's requests; the same seed and level give the same ones."""
    rng = random.Random(f"{load.seed}/{level}")
    for _ in range(count):
        prompt = [rng.randrange(_FIRST_ID, load.vocab_size) for _ in range(rng.randint(*load.input_length))]
        yield target.encode(prompt, rng.randint(*load.output_length), rng.getrandbits(31))


async def _measure_levels(load: Load, target: Target, stub: Target) -> tuple[Target, list[dict[str, Any]]]:
    target = await _warm_up(load, target)
    levels = []
    for concurrency in load.concurrency:
        count = load.num_requests(concurrency)
        result = summarize_level(await run_level(load, target, concurrency, count))
        alone = summarize_level(await run_level(load, stub, concurrency, count))
        rates = [float(str(found["output_tokens_per_s"])) for found in (result, alone)]
        levels.append({"concurrency": concurrency, **result, "client": judge_client(*rates)})
    return target, levels


async def _warm_up(load: Load, target: Target) -> Target:
    """Run the largest concurrency once; a server that does not know `ignore_eos` is asked without it."""
    [first] = await run_level(load, target, 1, 1)
    if first.error is not None and first.error.startswith("HTTP 4"):
        body = {name: value for name, value in target.body.items() if name != "ignore_eos"}
        without = replace(target, body=body)
        [second] = await run_level(load, without, 1, 1)
        if second.error is None:
            first, target = second, without
    if first.error is not None:
        raise LockstepError(f"{load.url} does not answer the warm-up: {first.error}")
    largest = max(load.concurrency)
    await run_level(load, target, largest, largest, level=-1)
    return target


async def run_level(
    load: Load, target: Target, concurrency: int, count: int, *, level: int | None = None
) -> Sequence[Timeline]:
    """Send `count` requests over `concurrency` connections, each its next one as soon as the last is answered."""
    requests = list(draw_requests(load, target, concurrency if level is None else level, count))
    queue, timelines = iter(requests), list[Timeline]()

    async def work() -> None:
        connection = Connection(target, load.timeout_s)
        for request in queue:
            timelines.append(await connection.stream(request))
        await connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, count)):
            group.create_task(work())
    return timelines


def _ask(target: Target, path: str) -> Any:
    """Return what the server says of its models; None where it says nothing."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=10)
    try:
        connection.request("GET", target.path.removesuffix("/v1/completions") + path, headers=dict(target.headers))
        return json.loads(connection.getresponse().read())
    except OSError as error:
        raise LockstepError(f"http://{target.host}:{target.port} cannot be reached: {error}") from None
    except ValueError:
        return None
    finally:
        connection.close()
