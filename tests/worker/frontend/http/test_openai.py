"""The official client drives every route of the OpenAPI document; its own models check the shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from lockstep_worker.wire.messages import FinishCode
from support.worlds.engine import say
from support.worlds.frontend import CONTEXT, END_ID, MODEL_NAME, Frontend, encode, start_frontend

TEXT = "k=4217 é你😀"
API_KEY = "geheim"


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend(api_key=API_KEY) as running:
        running.engine.script = say([*encode(TEXT), END_ID], FinishCode.END_ID)
        yield running


@pytest.fixture(scope="module")
def client(frontend: Frontend) -> Iterator[openai.OpenAI]:
    with connect(frontend, is_strict=True) as client:
        yield client


@pytest.fixture(scope="module")
def lenient(frontend: Frontend) -> Iterator[openai.OpenAI]:
    """For streamed completions: there the client's own types do not allow the null reasons that the API sends."""
    with connect(frontend, is_strict=False) as client:
        yield client


def connect(frontend: Frontend, *, is_strict: bool, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{frontend.url}/v1", api_key=API_KEY, max_retries=0, _strict_response_validation=is_strict, **options
    )


def test_every_route_of_the_document_is_driven() -> None:
    driven: set[tuple[str, str]] = set()
    recorder = httpx.Client(event_hooks={"request": [lambda request: driven.add((request.method, request.url.path))]})
    with start_frontend(api_key=API_KEY) as frontend, connect(frontend, is_strict=True, http_client=recorder) as client:
        frontend.engine.script = say([*encode(TEXT), END_ID], FinishCode.END_ID)
        outside = client.with_options(base_url=frontend.url)
        document: Any = outside.get("/openapi.json", cast_to=object)
        drive_api(client)
        drive_tokenizer(outside)
        drive_operations(outside)
    assert driven - {("GET", "/openapi.json")} == {
        (method.upper(), re.sub(r"\{\w+\}", MODEL_NAME, path))
        for path, operations in document["paths"].items()
        for method in operations
    }


def drive_api(client: openai.OpenAI) -> None:
    assert client.completions.create(model=MODEL_NAME, prompt="COPY").choices[0].text == TEXT
    chat = client.chat.completions.create(model=MODEL_NAME, messages=[{"role": "user", "content": "COPY"}])
    assert chat.choices[0].message.content == TEXT
    assert [model.id for model in client.models.list()] == [MODEL_NAME]
    assert client.models.retrieve(MODEL_NAME).id == MODEL_NAME


def drive_tokenizer(outside: openai.OpenAI) -> None:
    tokens: Any = outside.post("/tokenize", body={"prompt": TEXT}, cast_to=object)
    assert tokens == {"tokens": encode(TEXT), "count": len(encode(TEXT)), "max_model_len": CONTEXT}
    assert outside.post("/detokenize", body={"tokens": tokens["tokens"]}, cast_to=object) == {"prompt": TEXT}


def drive_operations(outside: openai.OpenAI) -> None:
    for path in ("/health", "/ready"):
        assert outside.get(path, cast_to=object) == {"status": "ok"}
    assert 'lockstep_requests_total{outcome="stop"} 2.0' in outside.get("/metrics", cast_to=str)
    assert outside.get("/drain", cast_to=object) == {"draining": False, "in_flight": 0}
    assert outside.post("/drain", cast_to=object) == {"draining": True, "in_flight": 0}
    with pytest.raises(openai.InternalServerError, match="draining"):
        outside.get("/ready", cast_to=object)


def test_a_history_goes_back_as_it_came(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model=MODEL_NAME, messages=[{"role": "user", "content": "COPY"}])
    message = first.choices[0].message
    assert (message.content, first.choices[0].finish_reason) == (TEXT, "stop")
    history = [{"role": "user", "content": "COPY"}, message.model_dump(), {"role": "user", "content": "again"}]
    second = client.chat.completions.create(model=MODEL_NAME, messages=history)  # type: ignore[arg-type]
    assert second.choices[0].message.content == TEXT


def test_the_clients_stream_helper_puts_a_message_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL_NAME, messages=[{"role": "user", "content": "COPY"}]) as stream:
        assert stream.get_final_completion().choices[0].message.content == TEXT


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt", prompt="a")
    with pytest.raises(openai.BadRequestError, match="top_p") as caught:
        client.completions.create(model=MODEL_NAME, prompt="a", top_p=3)
    assert caught.value.param == "top_p"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_an_engine_that_dies_raises_in_the_middle_of_a_stream(frontend: Frontend, lenient: openai.OpenAI) -> None:
    frontend.engine.script = say(encode("a" * 800))
    stream = lenient.completions.create(model=MODEL_NAME, prompt="COPY", stream=True)
    next(iter(stream))
    frontend.engine.die(rank=3, reason="rank 3 failed: it raised", exit_code=87)
    with pytest.raises(openai.APIError, match="down: rank 3 failed: it raised"):
        for _ in stream:
            pass
