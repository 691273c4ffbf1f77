"""The official client drives every route that it knows; its own models check the shapes."""

from collections.abc import Iterator

import openai
import pytest

from lockstep_worker.request import FinishCode
from support.engine import say
from support.frontend import END_ID, Frontend, encode, start_frontend

TEXT = "k=4217 é你😀"


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend(api_key="geheim") as running:
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


def connect(frontend: Frontend, *, is_strict: bool) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{frontend.url}/v1", api_key="geheim", max_retries=0, _strict_response_validation=is_strict
    )


def test_completions(client: openai.OpenAI, lenient: openai.OpenAI) -> None:
    whole = client.completions.create(model="recall", prompt="COPY", n=2, extra_body={"top_k": 5})
    assert [choice.text for choice in whole.choices] == [TEXT] * 2
    assert whole.usage is not None and whole.usage.completion_tokens == 2 * (len(encode(TEXT)) + 1)
    stream = lenient.completions.create(
        model="recall", prompt=["COPY", "COPY"], stream=True, stream_options={"include_usage": True}
    )
    texts, usage = ["", ""], None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [TEXT] * 2
    assert usage is not None and usage.total_tokens == whole.usage.total_tokens + len(encode("COPY"))


def test_chat(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="recall", messages=[{"role": "user", "content": "COPY"}])
    message = first.choices[0].message
    assert (message.content, first.choices[0].finish_reason) == (TEXT, "stop")
    history = [{"role": "user", "content": "COPY"}, message.model_dump(), {"role": "user", "content": "again"}]
    second = client.chat.completions.create(model="recall", messages=history)  # type: ignore[arg-type]
    assert second.choices[0].message.content == TEXT
    with client.chat.completions.stream(model="recall", messages=[{"role": "user", "content": "COPY"}]) as stream:
        assert stream.get_final_completion().choices[0].message.content == TEXT


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["recall"]
    assert client.models.retrieve("recall").id == "recall"


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt", prompt="a")
    with pytest.raises(openai.BadRequestError, match="top_p") as caught:
        client.completions.create(model="recall", prompt="a", top_p=3)
    assert caught.value.param == "top_p"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_an_engine_that_dies_raises_in_the_middle_of_a_stream(frontend: Frontend, lenient: openai.OpenAI) -> None:
    frontend.engine.script = say(encode("a" * 800))
    stream = lenient.completions.create(model="recall", prompt="COPY", stream=True)
    next(iter(stream))
    frontend.engine.die(rank=3, reason="rank 3 failed: it raised", exit_code=87)
    with pytest.raises(openai.APIError, match="down: rank 3 failed: it raised"):
        for _ in stream:
            pass
