import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lockstep_operator.controller.workqueue import WorkQueue
from lockstep_operator.groups.state import Key

A, B = ("default", "a"), ("default", "b")


def run(story: Callable[[WorkQueue], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(story(WorkQueue()), 30)

    asyncio.run(main())


async def is_empty(queue: WorkQueue) -> bool:
    try:
        await asyncio.wait_for(queue.take(), 0.05)
    except TimeoutError:
        return True
    return False


def test_a_key_that_is_added_often_is_taken_once() -> None:
    async def story(queue: WorkQueue) -> None:
        for _ in range(5):
            queue.add(A)
        assert await queue.take() == A
        queue.done(A)
        assert await is_empty(queue)

    run(story)


def test_a_key_at_work_is_taken_again_only_when_it_is_done() -> None:
    async def story(queue: WorkQueue) -> None:
        queue.add(A)
        assert await queue.take() == A
        queue.add(A)
        assert await is_empty(queue)
        queue.done(A)
        assert await queue.take() == A

    run(story)


def test_another_key_does_not_wait_for_one_at_work() -> None:
    async def story(queue: WorkQueue) -> None:
        queue.add(A)
        await queue.take()
        queue.add(B)
        assert await queue.take() == B

    run(story)


def test_the_earliest_of_several_times_counts() -> None:
    async def story(queue: WorkQueue) -> None:
        queue.add(A, 3600)
        assert await is_empty(queue)
        queue.add(A, 0.01)
        queue.add(A, 60)
        assert await queue.take() == A
        queue.done(A)
        assert await is_empty(queue)

    run(story)


def test_a_waiting_taker_is_woken_from_another_thread() -> None:
    async def story(queue: WorkQueue) -> None:
        taker = asyncio.create_task(queue.take())
        await asyncio.sleep(0.01)
        await asyncio.to_thread(queue.add_from_thread, A)
        assert await taker == A

    run(story)


@pytest.mark.parametrize("workers", [1, 4])
def test_no_key_is_ever_at_work_twice_and_none_is_lost(workers: int) -> None:
    async def story(queue: WorkQueue) -> None:
        active: set[Key] = set()
        passes: dict[Key, int] = {}

        async def work() -> None:
            while True:
                key = await queue.take()
                assert key not in active
                active.add(key)
                await asyncio.sleep(0.001)
                passes[key] = passes.get(key, 0) + 1
                active.discard(key)
                queue.done(key)

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        keys = [("default", str(number)) for number in range(20)]
        for _ in range(5):
            for key in keys:
                queue.add(key)
            await asyncio.sleep(0.002)
        while len(passes) < len(keys):
            await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()

    run(story)
