import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from devcluster.kube.client import ApiClient, ApiError

PODS = "/api/v1/pods"


def pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


GONE = {"kind": "Status", "code": 410, "metadata": {}}
WATCHES = [
    [("ADDED", pod("a", 11)), ("BOOKMARK", pod("", 12))],
    [("ERROR", GONE)],
    [("DELETED", pod("b", 31))],
]


@asynccontextmanager
async def api_server(watches: list[list[tuple[str, dict[str, Any]]]], seen: list[str]) -> AsyncIterator[ApiClient]:
    """A server that plays one row of events per watch, then ends the connection; `seen` gets what was asked for."""
    remaining = list(watches)

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            seen.append("list")
            return web.json_response({"metadata": {"resourceVersion": "10"}, "items": []})
        seen.append(request.query["resourceVersion"])
        if not remaining:
            return web.json_response({"message": "no more"}, status=500)
        lines = [json.dumps({"type": kind, "object": item}) for kind, item in remaining.pop(0)]
        return web.Response(text="\n".join(lines) + "\n")

    application = web.Application()
    application.router.add_get(PODS, answer)
    async with TestServer(application) as server:
        client = ApiClient(str(server.make_url("")), ssl.create_default_context())
        yield client
        await client.close()


def test_a_watch_goes_on_where_it_ended_and_lists_again_after_410() -> None:
    async def collect() -> tuple[list[str], list[str]]:
        seen: list[str] = []
        got: list[str] = []
        async with api_server(WATCHES, seen) as client:
            async for kind, _ in client.watch(PODS):
                got.append(kind)
                if kind == "DELETED":
                    break
        return got, seen

    got, seen = asyncio.run(collect())
    assert got == ["SYNC", "ADDED", "SYNC", "DELETED"]
    assert seen == ["list", "10", "12", "list", "10"]


def test_an_error_carries_the_servers_words() -> None:
    async def ask() -> None:
        async with api_server([], []) as client:
            await client.call("GET", f"{PODS}?watch=true&resourceVersion=1")

    with pytest.raises(ApiError, match="no more") as caught:
        asyncio.run(ask())
    assert caught.value.status == 500
