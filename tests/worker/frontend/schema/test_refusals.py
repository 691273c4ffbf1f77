import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.data.bad_requests import CHAT_FAULTS, COMPLETION_FAULTS, LIMITS
from support.worlds.engine import refuse, say
from support.worlds.frontend import Frontend, encode, start_frontend, wait_until


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend(**LIMITS) as running:
        running.engine.script = say(encode("ok"))
        yield running


def check_refusal(reply: httpx.Response, param: str | None, *words: str, status: int = 400) -> None:
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    for word in words:
        assert word in error["message"], error


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


@pytest.mark.parametrize(("fields", "param", "words"), CHAT_FAULTS)
def test_a_wrong_conversation_is_refused_with_its_field(
    frontend: Frontend, fields: dict[str, Any], param: str, words: list[str]
) -> None:
    body = {"model": "recall", "messages": [{"role": "user", "content": "a"}]} | fields
    with frontend.client(headers={"content-type": "application/json"}) as client:
        reply = client.post("/v1/chat/completions", content=json.dumps(body))
    check_refusal(reply, param, *words)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(b"", "JSON object", id="nothing"),
        pytest.param(b"{", "not JSON", id="half an object"),
        pytest.param(b'{"prompt": "a"} {}', "not JSON", id="two objects"),
        pytest.param(b'{"prompt": "\n"}', "not JSON", id="control character"),
        pytest.param(b"[]", "JSON object", id="list"),
        pytest.param(b"null", "JSON object", id="null"),
        pytest.param(b'{"prompt": "\xff"}', "UTF-8", id="not UTF-8"),
        pytest.param(b"\x1f\x8b\x08\x00", "UTF-8", id="compressed"),
        pytest.param(b'{"seed": ' + b"9" * 5000 + b"}", "4300 digits", id="number of 5000 digits"),
        pytest.param(b"[" * 50_000, "nested too deeply", id="deep nesting"),
        pytest.param(b'{"prompt": ' + b"[" * 40_000 + b"]" * 40_000 + b"}", "nested too deeply", id="deep field"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_the_reason(frontend: Frontend, body: bytes, words: str) -> None:
    with frontend.client(headers={"content-type": "application/json"}) as client:
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            check_refusal(client.post(path, content=body), None, words)


def test_what_a_client_sent_comes_back_cut(frontend: Frontend) -> None:
    reply = frontend.complete(**{"x" * 50_000: 1})
    assert reply.json()["error"]["message"].endswith("x is not a field of this request.")
    assert len(frontend.complete(model="m" * 50_000).text) < len(reply.text) < 3000


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
    body = json.dumps({"model": "recall", "prompt": "a" * 500_000}).encode()
    content = (body[at : at + 5000] for at in range(0, len(body), 5000)) if is_chunked else body
    with frontend.client(headers={"content-type": "application/json"}) as client:
        check_refusal(client.post("/v1/completions", content=content), None, "400000", status=413)


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
            check_refusal(reply, None, str(LIMITS["max_queued"]), status=429)
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
