import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.engine import refuse, say
from support.frontend import Frontend, encode, start_frontend, wait_until

MAX_QUEUED = 8


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend(max_queued=MAX_QUEUED, max_n=4, max_body_bytes=100_000) as running:
        running.engine.script = say(encode("ok"))
        yield running


def check_refusal(reply: httpx.Response, param: str | None, *words: str, status: int = 400) -> None:
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    for word in words:
        assert word in error["message"], error


COMPLETION_FAULTS = [
    pytest.param({"temperature": "1"}, "temperature", ["number"], id="a number as text"),
    pytest.param({"temperature": True}, "temperature", ["number"], id="a truth value as number"),
    pytest.param({"temperature": 2.5}, "temperature", ["2"], id="temperature"),
    pytest.param({"temperature": -0.1}, "temperature", ["0"], id="negative temperature"),
    pytest.param({"top_p": 0}, "top_p", ["0"], id="top_p"),
    pytest.param({"priority": 2**31}, "priority", ["2147483647"], id="priority"),
    pytest.param({"priority": "high"}, "priority", ["integer"], id="priority as text"),
    pytest.param({"top_k": -2}, "top_k", ["-1"], id="top_k"),
    pytest.param({"min_p": 1.1}, "min_p", ["1"], id="min_p"),
    pytest.param({"max_tokens": 1.0}, "max_tokens", ["integer"], id="an integer as float"),
    pytest.param({"max_tokens": True}, "max_tokens", ["integer"], id="a truth value as integer"),
    pytest.param({"max_tokens": -1}, "max_tokens", ["0"], id="negative max_tokens"),
    pytest.param({"max_tokens": 0}, "max_tokens", ["1"], id="no tokens without echo"),
    pytest.param({"max_tokens": 2**31}, "max_tokens", ["2147483647"], id="huge max_tokens"),
    pytest.param({"max_tokens": 2000}, "max_tokens", ["2000", "1024", "1 tokens"], id="max_tokens beyond the context"),
    pytest.param({"min_tokens": 5, "max_tokens": 4}, "min_tokens", ["5", "4"], id="min_tokens above max_tokens"),
    pytest.param({"n": 0}, "n", ["1"], id="n is 0"),
    pytest.param({"n": 5}, "n", ["4"], id="huge n"),
    pytest.param({"n": 3, "prompt": ["a", "b", "c"]}, "prompt", ["9", "8"], id="more sequences than may be queued"),
    pytest.param({"seed": 2**63}, "seed", [], id="seed"),
    pytest.param({"prompt": ""}, "prompt", ["empty"], id="empty text"),
    pytest.param({"prompt": []}, "prompt", ["empty"], id="no prompt"),
    pytest.param({"prompt": [[]]}, "prompt", ["empty"], id="no ids"),
    pytest.param({"prompt": ["a", ""]}, "prompt", ["empty"], id="one prompt is empty"),
    pytest.param({"prompt": None}, "prompt", ["list of token ids"], id="null prompt"),
    pytest.param({"prompt": ["a", 5]}, "prompt", ["list of token ids"], id="mixed prompt"),
    pytest.param({"prompt": [5, True]}, "prompt", ["list of token ids"], id="a truth value as id"),
    pytest.param({"prompt": [5, 448]}, "prompt", ["448", "447"], id="id beyond the vocabulary"),
    pytest.param({"prompt": [-1]}, "prompt", ["-1"], id="negative id"),
    pytest.param({"prompt": [10**400]}, "prompt", ["447"], id="huge id"),
    pytest.param({"prompt": [5] * 1024}, "prompt", ["1024"], id="no room in the context"),
    pytest.param({"prompt": "a" * 3000}, "prompt", ["3000", "1024"], id="text beyond the context"),
    pytest.param({"prompt": "a\ud800"}, "prompt", ["surrogate"], id="lone surrogate"),
    pytest.param({"stop": ""}, "stop", ["1 to"], id="empty stop"),
    pytest.param({"stop": ["a"] * 17}, "stop", ["16"], id="many stops"),
    pytest.param({"stop": [1]}, "stop", ["string"], id="a stop that is no text"),
    pytest.param({"stop_token_ids": [448]}, "stop_token_ids", ["448"], id="stop id beyond the vocabulary"),
    pytest.param({"stop_token_ids": list(range(20, 36))}, "stop_token_ids", ["15"], id="many stop ids"),
    pytest.param({"stream": "yes"}, "stream", ["boolean"], id="stream"),
    pytest.param({"stream_options": {}}, None, ["stream"], id="options without a stream"),
    pytest.param({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", ["field"], id="unknown option"),
    pytest.param({"unheard_of": 1}, "unheard_of", ["unheard_of"], id="unknown field"),
    pytest.param({"\ud800": 1}, None, ["unicode"], id="unknown field that is no text"),
    pytest.param({"logprobs": 21}, "logprobs", ["20"], id="many logprobs"),
    pytest.param({"logprobs": -1}, "logprobs", ["0"], id="negative logprobs"),
    pytest.param({"logprobs": True}, "logprobs", ["integer"], id="a truth value as logprobs"),
    pytest.param({"logprobs": 0, "echo": True}, None, ["logprobs", "echo"], id="logprobs of the prompt"),
    pytest.param({"prompt_logprobs": 0}, "prompt_logprobs", ["not supported"], id="prompt_logprobs"),
    pytest.param({"top_logprobs": 1}, "top_logprobs", ["not supported"], id="top_logprobs"),
    pytest.param({"presence_penalty": 2.1}, "presence_penalty", ["2"], id="presence_penalty"),
    pytest.param({"frequency_penalty": -2.1}, "frequency_penalty", ["-2"], id="frequency_penalty"),
    pytest.param({"frequency_penalty": False}, "frequency_penalty", ["number"], id="a truth value as penalty"),
    pytest.param({"repetition_penalty": 0}, "repetition_penalty", ["0.1"], id="repetition_penalty"),
    pytest.param({"repetition_penalty": 11}, "repetition_penalty", ["10"], id="huge repetition_penalty"),
    pytest.param({"logit_bias": {"448": 1}}, "logit_bias", ["448", "447"], id="bias beyond the vocabulary"),
    pytest.param({"logit_bias": {"-1": 1}}, "logit_bias", ["token ids"], id="bias of a negative id"),
    pytest.param({"logit_bias": {"5.0": 1}}, "logit_bias", ["token ids"], id="bias of a fraction"),
    pytest.param({"logit_bias": {"05": 1}}, "logit_bias", ["token ids"], id="bias of an id in another writing"),
    pytest.param({"logit_bias": {"\u0665": 1}}, "logit_bias", ["token ids"], id="bias of an Arabic digit"),
    pytest.param({"logit_bias": {"9" * 5000: 1}}, "logit_bias", ["token ids"], id="bias of a huge id"),
    pytest.param({"logit_bias": {"5": 100.5}}, "logit_bias.5", ["100"], id="bias above 100"),
    pytest.param({"logit_bias": {"5": -101}}, "logit_bias.5", ["-100"], id="bias below -100"),
    pytest.param({"logit_bias": {"5": "1"}}, "logit_bias.5", ["number"], id="a bias that is text"),
    pytest.param({"logit_bias": {"5": True}}, "logit_bias.5", ["number"], id="a truth value as bias"),
    pytest.param({"logit_bias": [5]}, "logit_bias", ["dictionary"], id="a bias that is a list"),
    pytest.param({"logit_bias": dict.fromkeys(map(str, range(301)), 1)}, "logit_bias", ["300"], id="many biases"),
    pytest.param({"best_of": 2}, "best_of", ["not supported"], id="best_of"),
    pytest.param({"suffix": "x"}, "suffix", ["not supported"], id="suffix"),
    pytest.param({"user": "x"}, "user", ["not supported"], id="user"),
]


@pytest.mark.parametrize(("fields", "param", "words"), COMPLETION_FAULTS)
def test_a_wrong_completion_is_refused_with_its_field(
    frontend: Frontend, fields: dict[str, Any], param: str | None, words: list[str]
) -> None:
    asked = len(frontend.engine.requests)
    body = json.dumps({"model": "recall", "prompt": "a"} | fields)
    with frontend.client(headers={"content-type": "application/json"}) as client:
        check_refusal(client.post("/v1/completions", content=body), param, *words)
    assert len(frontend.engine.requests) == asked
    assert frontend.complete().status_code == 200


CHAT_FAULTS = [
    pytest.param({"messages": []}, "messages", ["1"], id="no message"),
    pytest.param({"messages": "hello"}, "messages", ["list"], id="text as messages"),
    pytest.param({"messages": [{"content": "a"}]}, "messages.0.role", ["required"], id="no role"),
    pytest.param({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role", ["user"], id="role"),
    pytest.param({"messages": [{"role": "user", "content": "\udc00"}]}, None, ["surrogate"], id="lone surrogate"),
    pytest.param({"messages": [{"role": "user", "name": "x"}]}, "messages.0.name", ["not supported"], id="name"),
    pytest.param({"messages": [{"role": "user", "x": 1}]}, "messages.0.x", ["field"], id="unknown field of a message"),
    pytest.param({"messages": [{"role": "user", "content": "a" * 2000}]}, "messages", ["1024"], id="too long"),
    pytest.param({"max_completion_tokens": 0}, "max_completion_tokens", ["1"], id="no tokens"),
    pytest.param({"max_completion_tokens": 5000}, "max_completion_tokens", ["5000", "1024"], id="beyond the context"),
    pytest.param({"tools": [{}]}, "tools", ["not supported"], id="tools"),
    pytest.param({"response_format": {"type": "json_object"}}, "response_format", ["not supported"], id="format"),
    pytest.param({"logprobs": 1}, "logprobs", ["boolean"], id="logprobs"),
    pytest.param({"top_logprobs": 1}, None, ["top_logprobs", "logprobs"], id="top_logprobs without logprobs"),
    pytest.param({"logprobs": True, "top_logprobs": 21}, "top_logprobs", ["20"], id="many top_logprobs"),
    pytest.param({"logit_bias": {"448": 1}}, "logit_bias", ["448", "447"], id="bias beyond the vocabulary"),
    pytest.param({"echo": True}, "echo", ["not supported"], id="echo"),
]


@pytest.mark.parametrize(("fields", "param", "words"), CHAT_FAULTS)
def test_a_wrong_conversation_is_refused_with_its_field(
    frontend: Frontend, fields: dict[str, Any], param: str | None, words: list[str]
) -> None:
    body = {"model": "recall", "messages": [{"role": "user", "content": "a"}]} | fields
    with frontend.client(headers={"content-type": "application/json"}) as client:
        reply = client.post("/v1/chat/completions", content=json.dumps(body))
    check_refusal(reply, reply.json()["error"]["param"] if param is None else param, *words)


def test_an_image_is_refused_by_its_place(frontend: Frontend) -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:"}}]
    error = frontend.chat(messages=[{"role": "user", "content": parts}]).json()["error"]
    assert error["param"].startswith("messages.0.content"), error


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"a": NaN}', b"\xff", b"[" * 50_000])
def test_a_body_that_is_no_object_is_refused(frontend: Frontend, body: bytes) -> None:
    with frontend.client(headers={"content-type": "application/json"}) as client:
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            reply = client.post(path, content=body)
            assert reply.status_code == 400, (path, reply.text)
            assert reply.json()["error"]["message"]


def test_not_a_number_is_refused(frontend: Frontend) -> None:
    with frontend.client(headers={"content-type": "application/json"}) as client:
        reply = client.post("/v1/completions", content=b'{"model":"recall","prompt":"a","temperature":NaN}')
    check_refusal(reply, "temperature", "finite")


def test_a_body_of_another_type_is_refused(frontend: Frontend) -> None:
    with frontend.client() as client:
        reply = client.post("/v1/completions", data={"model": "recall", "prompt": "a"})
    check_refusal(reply, None, "application/json")


def test_an_unknown_model_is_not_found(frontend: Frontend) -> None:
    reply = frontend.complete(model="gpt")
    check_refusal(reply, "model", "gpt", "recall", status=404)
    assert reply.json()["error"]["code"] == "model_not_found"
    with frontend.client() as client:
        check_refusal(client.get("/v1/models/gpt"), "model", status=404)
        check_refusal(client.post("/tokenize", json={"prompt": "a", "model": "gpt"}), "model", status=404)


def test_unknown_paths_and_methods_are_error_objects(frontend: Frontend) -> None:
    with frontend.client() as client:
        check_refusal(client.get("/v2/nothing"), None, status=404)
        check_refusal(client.get("/v1/completions"), None, status=405)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_beyond_the_limit_is_too_large(frontend: Frontend, is_chunked: bool) -> None:
    body = json.dumps({"model": "recall", "prompt": "a" * 200_000}).encode()
    content = (body[at : at + 5000] for at in range(0, len(body), 5000)) if is_chunked else body
    with frontend.client(headers={"content-type": "application/json"}) as client:
        check_refusal(client.post("/v1/completions", content=content), None, status=413)


@pytest.mark.parametrize("tokens", [[448], [-1], ["a"], None])
def test_detokenize_refuses_what_is_no_id(frontend: Frontend, tokens: Any) -> None:
    with frontend.client() as client:
        reply = client.post("/detokenize", json={"tokens": tokens})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("tokens")


def test_a_refusal_of_rank_0_ends_only_its_request(frontend: Frontend) -> None:
    refused = frontend.metric('lockstep_requests_total{outcome="refused"}')
    script, frontend.engine.script = frontend.engine.script, refuse("The prompt needs 9 blocks; 8 exist.", "prompt")
    try:
        for stream in (False, True):
            check_refusal(frontend.complete(n=2, stream=stream), "prompt", "9 blocks")
    finally:
        frontend.engine.script = script
    assert frontend.complete().status_code == 200
    frontend.wait_for_metric('lockstep_requests_total{outcome="refused"}', refused + 2, 5)
    assert frontend.metric("lockstep_requests_in_flight") == 0


def test_more_than_may_be_queued_is_refused_until_there_is_room(frontend: Frontend) -> None:
    script, frontend.engine.script = frontend.engine.script, say([5] * 100_000)
    body = {"model": "recall", "prompt": ["a", "b"], "n": 4, "stream": True}
    with frontend.client() as client:
        with client.stream("POST", "/v1/completions", json=body) as stream:
            chunks = stream.iter_raw()  # a generator that is dropped would close the stream
            next(chunks)
            reply = frontend.complete()
            check_refusal(reply, None, str(MAX_QUEUED), status=429)
            assert int(reply.headers["retry-after"]) >= 1
            assert reply.json()["error"]["type"] == "rate_limit_error"
        wait_until(lambda: not frontend.engine.running, 5)
    frontend.engine.script = script
    assert frontend.complete().status_code == 200


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(st.characters(exclude_categories=()), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["model", "prompt", "messages", "max_tokens", "min_tokens", "max_completion_tokens", "n", "temperature", "top_p"]
    + ["top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "stream", "stream_options", "echo", "x"]
    + ["logprobs", "top_logprobs", "logit_bias", "presence_penalty", "repetition_penalty", "tools", "user", "role"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(FIELDS, JSON, max_size=3), st.sampled_from(["/v1/completions", "/v1/chat/completions"]))
def test_no_body_makes_the_server_fail(frontend: Frontend, fields: dict[str, Any], path: str) -> None:
    body: dict[str, Any] = {"model": "recall", "max_tokens": 2}
    body |= {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    with frontend.client(headers={"content-type": "application/json"}) as client:
        reply = client.post(path, content=json.dumps(body | fields))
    assert reply.status_code in {200, 400, 404}, reply.text
    if reply.status_code != 200:
        assert reply.json()["error"]["message"]


def test_the_openapi_document_tells_of_errors_as_they_are(frontend: Frontend) -> None:
    with frontend.client() as client:
        document = client.get("/openapi.json").json()
    operation = document["paths"]["/v1/completions"]["post"]
    assert "422" not in operation["responses"]
    assert operation["responses"]["400"]["content"]["application/json"]["schema"]["$ref"].endswith("ErrorResponse")
    assert "HTTPValidationError" not in document["components"]["schemas"]
