"""Every field of a request, sent by the official client, has its effect: on what the ranks get, or on what comes back.

What the client's own types know goes by its name, the other fields as `extra_body`.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import openai
import pytest

from lockstep_worker.frontend.schema.schemas import ChatBody, CompletionBody
from lockstep_worker.wire.messages import FinishCode
from support.worlds.engine import say
from support.worlds.frontend import END_ID, MODEL, MODEL_NAME, Frontend, encode, start_frontend

TEXT = "one END two"
IDS = encode(TEXT)
MESSAGES = [{"role": "user", "content": "COPY"}]
Ask = Callable[..., Any]
PARAMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "max_tokens": (7, {"max_tokens": 7}),
    "temperature": (0.5, {"temperature": 0.5}),
    "top_p": (0.25, {"top_p": 0.25}),
    "presence_penalty": (-1.5, {"presence_penalty": -1.5}),
    "frequency_penalty": (1.5, {"frequency_penalty": 1.5}),
    "logit_bias": ({"5": -100, "0": 2}, {"logit_bias": ((0, 2.0), (5, -100.0))}),
    "seed": (42, {"seed": 42}),
    "top_k": (5, {"top_k": 5}),
    "min_p": (0.125, {"min_p": 0.125}),
    "min_tokens": (2, {"min_tokens": 2}),
    "ignore_eos": (True, {"end_ids": ()}),
    "stop_token_ids": ([9, 8], {"stop_token_ids": (8, 9)}),
    "repetition_penalty": (1.25, {"repetition_penalty": 1.25}),
}
"""Field: a value, and what of a sequence's parameters it changes."""
CHAT_PARAMS = PARAMS | {"max_completion_tokens": (7, {"max_tokens": 7})}
SHOWN = {"n", "stop", "stream", "stream_options", "logprobs", "priority"}
TEMPLATE = {"add_generation_prompt", "continue_final_message", "chat_template_kwargs"}
"""Fields with tests of their own, below."""


BEGINNING = "<|im_start|>user\nCOPY<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    """One whose template also knows an argument of the client."""
    directory = tmp_path_factory.mktemp("model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, directory)
    template = (MODEL / "chat_template.jinja").read_text() + "{% if loud %}!{% endif %}"
    (directory / "chat_template.jinja").write_text(template)
    with start_frontend(model_path=str(directory)) as running:
        yield running


@pytest.fixture(autouse=True)
def script(frontend: Frontend) -> None:
    frontend.engine.script = say([*IDS, END_ID], FinishCode.END_ID)


@pytest.fixture(scope="module")
def client(frontend: Frontend) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{frontend.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def complete(client: openai.OpenAI) -> Ask:
    return lambda **fields: ask(client.completions.create, {"prompt": "COPY"} | fields)


@pytest.fixture
def chat(client: openai.OpenAI) -> Ask:
    return lambda **fields: ask(client.chat.completions.create, {"messages": MESSAGES} | fields)


def ask(create: Ask, fields: dict[str, Any]) -> Any:
    typed = fields.keys() & inspect.signature(create).parameters.keys()
    extra = {name: fields[name] for name in fields.keys() - typed}
    return create(model=MODEL_NAME, extra_body=extra, **{name: fields[name] for name in typed})


def check_params(frontend: Frontend, create: Ask, field: str, value: Any, changes: dict[str, Any]) -> None:
    create(seed=1)
    plain = msgspec.structs.asdict(frontend.engine.requests[-1].params)
    create(**{"seed": 1, field: value})
    assert msgspec.structs.asdict(frontend.engine.requests[-1].params) == plain | changes != plain


@pytest.mark.parametrize("field", PARAMS)
def test_a_completions_field_reaches_the_ranks(frontend: Frontend, complete: Ask, field: str) -> None:
    check_params(frontend, complete, field, *PARAMS[field])


@pytest.mark.parametrize("field", CHAT_PARAMS)
def test_a_chats_field_reaches_the_ranks(frontend: Frontend, chat: Ask, field: str) -> None:
    check_params(frontend, chat, field, *CHAT_PARAMS[field])


def test_no_field_is_without_a_test() -> None:
    assert set(CompletionBody.model_fields) == {"model", "prompt", "echo"} | PARAMS.keys() | SHOWN
    assert set(ChatBody.model_fields) == {"model", "messages", "top_logprobs"} | TEMPLATE | CHAT_PARAMS.keys() | SHOWN


@pytest.fixture(params=["complete", "chat"])
def both(request: pytest.FixtureRequest) -> Ask:
    create: Ask = request.getfixturevalue(request.param)
    return create


def text_of(choice: Any) -> str:
    text: str = choice.text if hasattr(choice, "text") else choice.message.content
    return text


def texts_of(stream: Any, num_choices: int) -> list[str]:
    texts = [""] * num_choices
    for choice in (choice for chunk in stream for choice in chunk.choices):
        texts[choice.index] += (choice.text if hasattr(choice, "text") else choice.delta.content) or ""
    return texts


def test_n_gives_so_many_choices(frontend: Frontend, both: Ask) -> None:
    asked = len(frontend.engine.requests)
    reply = both(n=3)
    assert [(choice.index, text_of(choice)) for choice in reply.choices] == [(0, TEXT), (1, TEXT), (2, TEXT)]
    assert reply.usage.completion_tokens == 3 * (len(IDS) + 1)
    assert len({request.params.seed for request in frontend.engine.requests[asked:]}) == 3


@pytest.mark.parametrize("stop", ["END", ["nothing", "END"]])
def test_stop_cuts_the_text(both: Ask, stop: Any) -> None:
    choice = both(stop=stop).choices[0]
    assert (text_of(choice), choice.finish_reason) == ("one ", "stop")


def test_a_stream_comes_in_pieces_and_counts_at_its_end_when_asked(both: Ask) -> None:
    chunks = list(both(stream=True, n=2, stream_options={"include_usage": True}))
    assert texts_of(chunks, 2) == [TEXT, TEXT]
    assert len(chunks) > 4
    assert chunks[-1].usage.completion_tokens == 2 * (len(IDS) + 1)
    assert {chunk.usage for chunk in chunks[:-1]} == {None}
    assert all(chunk.usage is None for chunk in both(stream=True))


def test_priority_reaches_the_ranks(frontend: Frontend, both: Ask) -> None:
    both(priority=-3)
    assert frontend.engine.requests[-1].priority == -3


def test_logprobs_of_a_completion_tell_the_best_tokens(complete: Ask) -> None:
    logprobs = complete(logprobs=2).choices[0].logprobs
    assert len(logprobs.tokens) == len(IDS) + 1
    assert sorted(logprobs.top_logprobs[0].values()) == [-1.0, -0.5, -0.25]
    assert complete().choices[0].logprobs is None


def test_top_logprobs_of_a_chat_tell_the_best_tokens(chat: Ask) -> None:
    content = chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert [top.logprob for top in content[0].top_logprobs] == [-0.25, -0.5]
    assert chat(logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    assert chat().choices[0].logprobs is None


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        pytest.param({}, "ab<|im_end|>\n<|im_start|>assistant\n", id="left out"),
        pytest.param({"add_generation_prompt": True}, "ab<|im_end|>\n<|im_start|>assistant\n", id="true"),
        pytest.param({"add_generation_prompt": False}, "ab<|im_end|>\n", id="nobody begins"),
        pytest.param({"continue_final_message": True}, "ab", id="the last one goes on"),
        pytest.param({"chat_template_kwargs": {"loud": True}}, "ab<|im_end|>\n<|im_start|>assistant\n!", id="loud"),
    ],
)
def test_a_conversation_ends_as_asked(frontend: Frontend, chat: Ask, fields: dict[str, Any], end: str) -> None:
    messages = [{"role": "user", "content": "COPY"}, {"role": "assistant", "content": "ab"}]
    chat(messages=messages, **fields)
    assert frontend.engine.requests[-1].prompt == encode(BEGINNING + end)


def test_echo_begins_with_the_prompt(complete: Ask) -> None:
    assert complete(echo=True).choices[0].text == "COPY" + TEXT


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param("COPY", [encode("COPY")], id="text"),
        pytest.param(["a", "bc"], [encode("a"), encode("bc")], id="texts"),
        pytest.param([5, 6, 447], [[5, 6, 447]], id="ids"),
        pytest.param([[5], [6, 7]], [[5], [6, 7]], id="lists of ids"),
    ],
)
def test_prompts_of_every_kind_reach_the_ranks(
    frontend: Frontend, complete: Ask, prompt: Any, expected: list[list[int]]
) -> None:
    asked = len(frontend.engine.requests)
    reply = complete(prompt=prompt)
    assert [request.prompt for request in frontend.engine.requests[asked:]] == expected
    assert reply.usage.prompt_tokens == sum(map(len, expected))
    assert len(reply.choices) == len(expected)


@pytest.mark.parametrize("route", ["completions", "chat.completions"])
def test_every_field_of_the_client_is_known_by_its_name(client: openai.OpenAI, route: str) -> None:
    create = client.completions.create if route == "completions" else client.chat.completions.create
    body = ChatBody if route == "chat.completions" else CompletionBody
    fields = inspect.signature(create).parameters.keys() - {"extra_headers", "extra_query", "extra_body", "timeout"}
    assert fields <= body.model_fields.keys() | body.unsupported.keys()
