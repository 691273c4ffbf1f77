import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from lockstep_worker.errors import RequestError
from lockstep_worker.frontend.text.chat import ChatTemplate, Conversation
from lockstep_worker.frontend.text.tokenizer import load_tokenizer
from lockstep_worker.wire.messages import FinishCode
from support.worlds.engine import say
from support.worlds.frontend import END_ID, MODEL, Frontend, encode, load_backend, read_events, start_frontend

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "k=4217"},
    {"role": "user", "content": [{"type": "text", "text": "Q=0731 "}, {"type": "text", "text": "? k"}]},
    {"role": "assistant", "content": "k=4217", "refusal": None, "tool_calls": None, "annotations": []},
    {"role": "user", "content": "? Q"},
]
RENDERED = (
    "<|im_start|>system\nk=4217<|im_end|>\n<|im_start|>user\nQ=0731 ? k<|im_end|>\n"
    "<|im_start|>assistant\nk=4217<|im_end|>\n<|im_start|>user\n? Q<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend() as running:
        yield running


@pytest.fixture(scope="module")
def strict_frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    """One whose template refuses conversations that do not begin with the user."""
    directory = tmp_path_factory.mktemp("strict")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, directory)
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('The user must begin.') }}{% endif %}" + "{{ 1 }}"
    (directory / "chat_template.jinja").write_text(template)
    with start_frontend(model_path=str(directory)) as running:
        yield running


def test_a_conversation_is_rendered_by_the_model_template(frontend: Frontend) -> None:
    frontend.engine.script = say([*encode("Q=0731"), END_ID], FinishCode.END_ID)
    reply = frontend.chat(messages=MESSAGES).json()
    assert frontend.engine.requests[-1].prompt == encode(RENDERED)
    assert reply["object"] == "chat.completion"
    message = {"role": "assistant", "content": "Q=0731", "refusal": None}
    assert reply["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert reply["usage"]["prompt_tokens"] == len(encode(RENDERED))


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(frontend: Frontend) -> None:
    frontend.engine.script = say([*encode("Q=0731 é😀"), END_ID], FinishCode.END_ID)
    *events, last = read_events(frontend.chat(stream=True, n=2, stream_options={"include_usage": True}).text)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    for index in (0, 1):
        deltas = [c["delta"] for e in events for c in e["choices"] if c["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert "".join(delta.get("content", "") for delta in deltas) == "Q=0731 é😀"
        reasons = [c["finish_reason"] for e in events for c in e["choices"] if c["index"] == index]
        assert reasons[-1] == "stop" and set(reasons[:-1]) == {None}
    assert last["usage"]["completion_tokens"] == 2 * (len(encode("Q=0731 é😀")) + 1)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit_are_honoured(frontend: Frontend, field: str) -> None:
    frontend.engine.script = say(encode("a"))
    assert frontend.chat(**{field: 3}).status_code == 200
    assert frontend.engine.requests[-1].params.max_tokens == 3


def test_different_limits_are_refused(frontend: Frontend) -> None:
    reply = frontend.chat(max_tokens=3, max_completion_tokens=4)
    assert reply.status_code == 400
    assert "max_completion_tokens" in reply.json()["error"]["message"]


def test_what_the_template_says_reaches_the_client(strict_frontend: Frontend) -> None:
    reply = strict_frontend.chat(messages=MESSAGES)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert "The user must begin." in error["message"]
    assert error["param"] == "messages"
    assert strict_frontend.chat().status_code == 200


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(None, id="none"),
        pytest.param("{{ nothing.at.all }}", id="undefined"),
        pytest.param("{% if %}", id="syntax"),
        pytest.param("{{ 1 / 0 }}", id="arithmetic"),
        pytest.param("{{ messages + 1 }}", id="types"),
        pytest.param("{{ messages[7].role }}", id="index"),
        pytest.param("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", id="recursion"),
        pytest.param("{{ 'a' * 10 ** 15 }}", id="memory"),
        pytest.param("{% for i in range(10 ** 9) %}{% endfor %}", id="endless"),
        pytest.param("{{ ''.__class__.__mro__ }}", id="sandbox"),
        pytest.param("{{ '\ud800' }}", id="lone surrogate"),
    ],
)
def test_a_template_that_cannot_be_used_is_the_requests_error(template: str | None) -> None:
    with pytest.raises(RequestError, match="template"):
        ChatTemplate(template, {}).render(Conversation([{"role": "user", "content": "a"}]))


def test_the_template_may_stand_in_the_configuration_and_uses_its_tokens(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>"}, "chat_template": [{"name": "default", "template": "{{ bos_token }}!"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.load(tmp_path).render(Conversation([])) == "<s>!"


def test_tokenize_and_detokenize_are_inverse(frontend: Frontend) -> None:
    text = "k=4217 héllo 😀<|im_end|>"
    with frontend.client() as client:
        reply = client.post("/tokenize", json={"prompt": text}).json()
        assert reply == {"tokens": encode(text), "count": len(encode(text)), "max_model_len": 1024}
        assert client.post("/detokenize", json={"tokens": reply["tokens"]}).json() == {"prompt": text}
        chat = client.post("/tokenize", json={"messages": MESSAGES, "model": "recall"}).json()
        assert load_backend().decode(chat["tokens"], skip_special_tokens=False) == RENDERED
        chat = client.post("/tokenize", json={"messages": MESSAGES, "add_generation_prompt": False}).json()
        assert chat["tokens"] == encode(RENDERED.removesuffix("<|im_start|>assistant\n"))


def test_the_tokenizer_agrees_with_transformers() -> None:
    reference = AutoTokenizer.from_pretrained(MODEL)
    ours = load_tokenizer(str(MODEL))
    assert ours.chat.render(Conversation(MESSAGES)) == reference.apply_chat_template(
        MESSAGES, tokenize=False, add_generation_prompt=True
    )
    text = "COPY k=4217 héllo 😀"
    assert asyncio.run(ours.encode([text], add_special_tokens=True)) == [reference.encode(text)]


def test_long_texts_are_tokenized_like_short_ones(frontend: Frontend) -> None:
    text = "COPY ab 12 é" * 1000
    with frontend.client() as client:
        assert client.post("/tokenize", json={"prompt": text}).json()["tokens"] == encode(text)
