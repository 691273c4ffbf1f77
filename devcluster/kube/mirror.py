"""Keeps a copy of the API server's objects of one kind, and writes a file from such copies whenever they change."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from devcluster.kube.client import ApiClient
from devcluster.kube.objects import Object

SETTLE_S = 0.05
"""Changes within this time are written together."""


class Mirror:
    """The objects at one path of the API as they are now."""

    def __init__(self, client: ApiClient, path: str, changed: asyncio.Event) -> None:
        self._client = client
        self._path = path
        self._changed = changed
        self._objects: dict[str, Object] = {}

    @property
    def objects(self) -> list[Object]:
        """All objects, in no particular order."""
        return list(self._objects.values())

    async def follow(self) -> None:
        """Keeps the copy current for ever and sets the event on each change."""
        async for kind, item in self._client.watch(self._path):
            if kind == "SYNC":
                self._objects = {piece["metadata"]["uid"]: piece for piece in item["items"]}
            elif kind == "DELETED":
                self._objects.pop(item["metadata"]["uid"], None)
            else:
                self._objects[item["metadata"]["uid"]] = item
            self._changed.set()


async def write_on_change(
    path: Path, render: Callable[[], str], changed: asyncio.Event, written: Callable[[], None]
) -> None:
    """Writes `render()` to `path` after each change, for ever; calls `written` when the text is another one."""
    last: str | None = None
    while True:
        await changed.wait()
        await asyncio.sleep(SETTLE_S)
        changed.clear()
        text = render()
        if text != last:
            temporary = path.with_name(f".{path.name}.new")
            temporary.write_text(text)
            temporary.rename(path)  # whoever reads it never sees half a file
            last = text
            written()


async def first_to_end(*tasks: asyncio.Task[object]) -> None:
    """Waits until one of the tasks, all of which should run for ever, ends; raises what it raised."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
