"""Every accepted request ends in exactly one outcome, and what was never accepted in none.

The whole frontend runs here within the test's process, so that its counts can still be read when its engine is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn

from lockstep_worker.frontend.http.app import create_app
from lockstep_worker.frontend.http.service import Service, build_service
from lockstep_worker.frontend.settings import FrontendSettings
from lockstep_worker.frontend.text.tokenizer import load_tokenizer
from lockstep_worker.metrics.tables import OUTCOMES
from lockstep_worker.wire.messages import FinishCode, NewRequest
from support.worlds.engine import ScriptedEngine, refuse, say, say_forever
from support.worlds.frontend import END_ID, MODEL, MODEL_NAME, encode, free_port, settings_for

API_KEY = "geheim"
MAX_QUEUED = 64
ENDS, STOPS, GOES_ON, IS_REFUSED, IS_CANCELLED = range(10, 15)
"""The first id of a prompt says what the ranks do with it."""
A = encode("a")[0]


def follow_prompt(request: NewRequest) -> Iterable[tuple[int, int]]:
    scripts = {
        ENDS: say(encode("ab.cd")),
        STOPS: say([*encode("ab.cd"), END_ID], FinishCode.END_ID),
        GOES_ON: say_forever(A),
        IS_REFUSED: refuse("it does not fit", "prompt"),
        IS_CANCELLED: say([A, -1], FinishCode.CANCELLED),
    }
    return scripts[request.prompt[0]](request)


class World:
    """A frontend, its engine, and a client."""

    def __init__(self, service: Service, engine: ScriptedEngine, client: httpx.AsyncClient) -> None:
        self.service, self.engine, self.client = service, engine, client
        self._numbers = itertools.count()

    def prompt(self, first: int) -> list[int]:
        """Make a prompt that no other request has."""
        number = next(self._numbers)
        return [first, number % 448, number // 448]

    def outcomes(self) -> Counter[str]:
        read = self.service.registry.get_sample_value
        return Counter({name: int(read("lockstep_requests_total", {"outcome": name}) or 0) for name in OUTCOMES})

    def in_flight(self) -> tuple[int, float | None]:
        return self.service.ranks.num_open, self.service.registry.get_sample_value("lockstep_requests_in_flight")

    async def post(self, timeout: str | None = None, **body: Any) -> httpx.Response:
        headers = {} if timeout is None else {"X-Request-Timeout": timeout}
        return await self.client.post("/v1/completions", json={"model": MODEL_NAME} | body, headers=headers)

    async def start(self, **body: Any) -> asyncio.Task[httpx.Response]:
        """Send a request and wait until the ranks work on it."""
        prompt = self.prompt(GOES_ON)
        task = asyncio.create_task(self.post(prompt=prompt, **body))
        await wait_until(lambda: any(request.prompt == prompt for request in self.engine.requests))
        return task


@contextlib.asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory() as directory:
        addresses: dict[str, Any] = {"inbound": f"ipc://{directory}/in", "outbound": f"ipc://{directory}/out"}
        port = free_port()
        values = settings_for(port=port, api_key=API_KEY, max_queued=MAX_QUEUED, **addresses, **settings)
        known = msgspec.convert(values, FrontendSettings)
        service = build_service(known, load_tokenizer(str(MODEL)))
        options: Any = {"port": port, "lifespan": "off", "log_config": None, "timeout_graceful_shutdown": 5}
        server = uvicorn.Server(uvicorn.Config(create_app(service), **options))
        serving = asyncio.create_task(server.serve())
        client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {API_KEY}"}, timeout=30
        )
        async with client:
            with ScriptedEngine(**addresses, script=follow_prompt) as engine:
                await wait_until(lambda: server.started and service.availability.unavailable() is None)
                yield World(service, engine, client)
        server.should_exit = True
        await serving
        service.ranks.disconnect()


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


Kind = Callable[[World, random.Random], Awaitable[str | None]]
"""Makes a request and says which outcome it must have; None when it is never accepted."""


async def ends(world: World, chance: random.Random) -> str:
    prompts = [world.prompt(chance.choice([ENDS, STOPS])) for _ in range(chance.randint(1, 3))]
    reply = await world.post(prompt=prompts, n=chance.randint(1, 3), stream=chance.random() < 0.5)
    assert reply.status_code == 200
    return "length" if any(prompt[0] == ENDS for prompt in prompts) else "stop"


async def meets_a_stop_string(world: World, chance: random.Random) -> str:
    prompt = world.prompt(chance.choice([ENDS, STOPS, GOES_ON]))
    stop = "aaa" if prompt[0] == GOES_ON else "."
    assert (await world.post(prompt=prompt, stop=stop, n=2, stream=chance.random() < 0.5)).status_code == 200
    return "stop"


async def asks_for_nothing(world: World, chance: random.Random) -> str:
    body: dict[str, Any] = {"echo": True, "max_tokens": 0, "stream": chance.random() < 0.5}
    assert (await world.post(prompt=world.prompt(ENDS), **body)).status_code == 200
    return "length"


async def goes_away(world: World, chance: random.Random) -> str:
    task = await world.start(n=chance.randint(1, 3), stream=chance.random() < 0.5)
    task.cancel()
    return "disconnect"


async def takes_too_long(world: World, chance: random.Random) -> str:
    stream = chance.random() < 0.5
    reply = await world.post(timeout="0.05", prompt=world.prompt(GOES_ON), n=2, stream=stream)
    assert reply.status_code == 504 or (stream and "request_timeout" in reply.text)
    return "timeout"


async def is_refused_by_rank_0(world: World, chance: random.Random) -> str:
    prompts = [world.prompt(GOES_ON), world.prompt(IS_REFUSED), world.prompt(IS_REFUSED)]
    stream = chance.random() < 0.5
    reply = await world.post(prompt=prompts, n=chance.randint(1, 2), stream=stream)
    assert reply.status_code == 400 or (stream and "it does not fit" in reply.text)
    return "refused"


async def is_cancelled_by_the_ranks(world: World, chance: random.Random) -> str:
    reply = await world.post(prompt=[world.prompt(IS_CANCELLED), world.prompt(GOES_ON)])
    assert reply.status_code == 503
    return "cancelled"


async def is_wrong(world: World, chance: random.Random) -> None:
    fields: list[dict[str, Any]] = [{"n": 0}, {"prompt": [448]}, {"prompt": []}, {"x": 1}, {"prompt": [5] * 2000}]
    assert (await world.post(**({"prompt": "a"} | chance.choice(fields)))).status_code == 400


async def is_for_another_model(world: World, chance: random.Random) -> None:
    assert (await world.post(model="gpt", prompt="a")).status_code == 404


async def has_no_key(world: World, chance: random.Random) -> None:
    reply = await world.client.post("/v1/completions", json={"model": MODEL_NAME}, headers={"Authorization": "x"})
    assert reply.status_code == 401


async def is_too_large(world: World, chance: random.Random) -> None:
    assert (await world.post(prompt="a" * (9 << 20))).status_code == 413


async def finds_the_queue_full(world: World, chance: random.Random) -> str:
    full = [await world.start(n=16) for _ in range(MAX_QUEUED // 16)]
    assert (await world.post(prompt="a")).status_code == 429
    for task in full[1:]:
        task.cancel()
    await wait_until(lambda: world.service.ranks.num_open == 1)
    full[0].cancel()
    return "disconnect"


KINDS: list[Kind] = [
    ends, meets_a_stop_string, asks_for_nothing, goes_away, takes_too_long, is_refused_by_rank_0,
    is_cancelled_by_the_ranks, is_wrong, is_for_another_model, has_no_key, is_too_large,
]  # fmt: skip


async def all_closed(world: World) -> None:
    await wait_until(lambda: world.service.ranks.num_open == 0)
    assert world.in_flight() == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_of_each_kind_counts_as_it_must(kind: Kind) -> None:
    async def scenario() -> None:
        async with running() as world:
            for turn in range(4):
                before = world.outcomes()
                expected = await kind(world, random.Random(turn))
                await all_closed(world)
                assert world.outcomes() - before == Counter([expected] if expected else [])

    asyncio.run(scenario())


def test_a_full_queue_counts_those_who_fill_it() -> None:
    async def scenario() -> None:
        async with running() as world:
            assert await finds_the_queue_full(world, random.Random(0)) == "disconnect"
            await all_closed(world)
            assert +world.outcomes() == {"disconnect": MAX_QUEUED // 16}

    asyncio.run(scenario())


async def lose_engine(world: World) -> str:
    world.engine.die(rank=1, reason="it raised", exit_code=87)
    return "error"


async def drain(world: World) -> str:
    world.service.lifecycle.start_ending(world.service.ranks)
    return "cancelled"


@pytest.mark.parametrize("end", [lose_engine, drain])
@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_of_all_kinds_and_the_end_of_it(seed: int, end: Callable[[World], Awaitable[str]]) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        async with running(drain_timeout=0.2, shutdown_timeout_s=0.2) as world:
            crowd = [chance.choice(KINDS)(world, random.Random(chance.random())) for _ in range(60)]
            limit = asyncio.Semaphore(8)  # fewer than fill the queue

            async def one(request: Awaitable[str | None]) -> str | None:
                async with limit:
                    return await request

            expected = Counter(outcome for outcome in await asyncio.gather(*map(one, crowd)) if outcome)
            await all_closed(world)
            assert +world.outcomes() == expected
            last = [await world.start(n=n, stream=stream) for n in (1, 3) for stream in (True, False)]
            assert world.in_flight() == (len(last), len(last))
            outcome = await end(world)
            for reply in await asyncio.gather(*last):
                assert reply.status_code == 503 or '"error"' in reply.text
            await all_closed(world)
            assert (await world.post(prompt="a")).status_code == 503
            assert +world.outcomes() == expected + Counter({outcome: len(last)})

    asyncio.run(scenario())
