"""Every route that the OpenAPI document names, with bodies, paths and headers of all kinds: nothing makes it fail."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.engine import say
from support.frontend import Frontend, encode, start_frontend

TEXT = st.text(st.characters(exclude_categories=()), max_size=6)
NUMBERS = st.integers() | st.floats() | st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 1e308])
ANY = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SENSIBLE: dict[str, Any] = {
    "model": "recall",
    "prompt": "COPY a",
    "messages": [{"role": "user", "content": "COPY a"}],
    "tokens": [5, 6],
}
"""What a required field holds unless it is the one that is at fault."""
HEADERS = st.sampled_from([None, "", "0", "nan", "x", "-1", "1e400", "30"])


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    fields: tuple[str, ...]
    required: tuple[str, ...]


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend(max_queued=64) as running:
        running.engine.script = say(encode("ok"))
        yield running


@pytest.fixture(scope="module")
def routes(frontend: Frontend) -> list[Route]:
    with frontend.client() as client:
        document = client.get("/openapi.json").json()
    found = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            name = content.get("schema", {}).get("$ref", "/").rsplit("/", 1)[1]
            schema = document["components"]["schemas"].get(name, {})
            fields = tuple(schema.get("properties", ()))
            found.append(Route(method.upper(), path, fields, tuple(schema.get("required", ()))))
    return [route for route in found if (route.method, route.path) != ("POST", "/drain")]  # it would end the test


def test_the_document_names_every_route(routes: list[Route]) -> None:
    assert {route.path for route in routes} == {
        "/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{name}", "/tokenize", "/detokenize",
        "/health", "/ready", "/drain", "/metrics",
    }  # fmt: skip
    assert {"priority", "stop", "messages"} <= {field for route in routes for field in route.fields}


def draw_body(data: st.DataObject, route: Route) -> bytes:
    body: Any = {name: SENSIBLE[name] for name in route.required}
    if route.path == "/tokenize":
        body["prompt"] = "a"
    if data.draw(st.integers(0, 9)) == 0:
        body = data.draw(ANY)
    else:
        names = st.sampled_from([*route.fields, "unknown"])
        body |= data.draw(st.dictionaries(names, ANY, max_size=3))
    return json.dumps(body).encode()


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_no_request_makes_the_server_fail(frontend: Frontend, routes: list[Route], data: st.DataObject) -> None:
    route = data.draw(st.sampled_from(routes))
    name = data.draw(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=6))
    path = route.path.replace("{name}", urllib.parse.quote(name, safe=""))
    timeout = data.draw(HEADERS)
    headers = {"content-type": "application/json"} | ({} if timeout is None else {"x-request-timeout": timeout})
    content = draw_body(data, route) if route.fields else None
    with frontend.client(headers=headers) as client:
        reply = client.request(route.method, path, content=content)
    assert reply.status_code < 500, (route, content, reply.text)
    if reply.status_code >= 400:
        assert reply.json()["error"]["message"]
