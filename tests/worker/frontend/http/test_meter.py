"""Every answer is counted by route and status, also those of requests that were never accepted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lockstep_worker.wire.messages import FinishCode
from support.worlds.engine import say
from support.worlds.frontend import END_ID, Frontend, encode, start_frontend

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend(api_key="geheim") as running:
        running.engine.script = say([*encode("abc"), END_ID], FinishCode.END_ID)
        yield running


def count(frontend: Frontend) -> dict[tuple[str, str], float]:
    with frontend.client() as client:
        text = client.get("/metrics").text
    return {
        (sample.labels["path"], sample.labels["code"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "lockstep_http_responses_total"
    }


@pytest.mark.parametrize(
    ("method", "path", "body", "key", "label", "code"),
    [
        ("POST", COMPLETIONS, {"model": "recall", "prompt": "a"}, "geheim", COMPLETIONS, "200"),
        ("POST", COMPLETIONS, {"model": "recall", "prompt": "a", "stream": True}, "geheim", COMPLETIONS, "200"),
        ("POST", COMPLETIONS, {"model": "recall", "prompt": "a", "top_p": 3}, "geheim", COMPLETIONS, "400"),
        ("POST", COMPLETIONS, {"model": "recall", "prompt": "a"}, "wrong", COMPLETIONS, "401"),
        ("POST", COMPLETIONS, {"model": "other", "prompt": "a"}, "geheim", COMPLETIONS, "404"),
        ("GET", COMPLETIONS, None, "geheim", COMPLETIONS, "405"),
        ("GET", "/v1/models/recall", None, "geheim", "/v1/models/{name}", "200"),
        ("GET", "/v1/models/other", None, "geheim", "/v1/models/{name}", "404"),
        ("GET", "/v1/models/recall", None, "wrong", "other", "401"),
        ("GET", "/favicon.ico", None, "geheim", "other", "404"),
    ],
)
def test_an_answer_is_counted_once(
    frontend: Frontend, method: str, path: str, body: dict[str, object] | None, key: str, label: str, code: str
) -> None:
    before = count(frontend)
    with frontend.client(headers={"Authorization": f"Bearer {key}"}) as client:
        assert str(client.request(method, path, json=body).status_code) == code
    after = count(frontend)
    grown = {series: value - before.get(series, 0) for series, value in after.items() if value != before.get(series)}
    assert grown == {(label, code): 1, ("/metrics", "200"): 1}


def test_a_completion_without_a_limit_has_that_of_openai_and_a_chat_none(frontend: Frontend) -> None:
    with frontend.client(headers={"Authorization": "Bearer geheim"}) as client:
        for path, body, limit in (
            (COMPLETIONS, {"prompt": [5] * 1020}, 4),
            (COMPLETIONS, {"prompt": "a"}, 16),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, 1024),
        ):
            answer = client.post(path, json={"model": "recall"} | body)
            assert answer.status_code == 200, answer.text
            request = frontend.engine.requests[-1]
            room = 1024 - len(request.prompt)
            assert request.params.max_tokens == min(limit, room)
