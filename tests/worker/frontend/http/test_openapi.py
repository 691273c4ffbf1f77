"""schemathesis drives every operation of the OpenAPI document, with good, bad and broken requests.

It finds what makes the server fail, answers and events that the document does not describe, wrong requests that are
accepted, routes that forget the key, and methods that are refused wrongly.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.worlds.engine import say
from support.worlds.frontend import MODEL_NAME, Frontend, encode, start_frontend

API_KEY = "geheim"
SEED = 1
NUM_EXAMPLES = 25
EXAMPLES = {
    "prompt": "COPY",
    "messages": [{"role": "user", "content": "COPY"}],
    "max_tokens": 4,
    "max_completion_tokens": 4,
    "min_tokens": 1,
    "n": 2,
    "top_logprobs": 2,
    "logit_bias": {"5": 1},
    "stop_token_ids": [5],
    "echo": False,
    "stream": True,
}
CONFIG = """
[checks]
# What the model's size and its chat template refuse cannot be told in a schema.
positive_data_acceptance.enabled = false
# The framework lists the methods of the path's first route only.
allow_header_conformance.enabled = false
# 504: the client's own deadline was short.
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 504]
"""


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend(max_queued=64, api_key=API_KEY) as running:
        running.engine.script = say(encode("ok"))
        yield running


@pytest.fixture(scope="module")
def document(frontend: Frontend) -> dict[str, Any]:
    with frontend.client() as client:
        return dict(client.get("/openapi.json").json())


def aim(document: dict[str, Any]) -> dict[str, Any]:
    """Add what only this server knows and values that go together, so that requests come as far as to the ranks."""
    aimed: dict[str, Any] = json.loads(json.dumps(document))
    for name in ("CompletionBody", "ChatBody"):
        properties = aimed["components"]["schemas"][name]["properties"]
        properties["model"]["enum"] = [MODEL_NAME]
        for field in properties.keys() & EXAMPLES.keys():
            properties[field]["examples"] = [EXAMPLES[field]]
        properties["logprobs"]["examples"] = [2 if name == "CompletionBody" else True]
        operation = aimed["paths"]["/v1/completions" if name == "CompletionBody" else "/v1/chat/completions"]["post"]
        operation["parameters"][0]["schema"]["examples"] = [30]
    return aimed


def test_schemathesis_finds_nothing(frontend: Frontend, document: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "openapi.json").write_text(json.dumps(aim(document)))
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml"]
    command += ["run", "openapi.json", "--url", frontend.url, "--header", f"Authorization: Bearer {API_KEY}"]
    command += ["--exclude-operation-id", "start_drain"]  # it would end the test
    command += ["--seed", str(SEED), "--max-examples", str(NUM_EXAMPLES), "--continue-on-failure", "--no-color"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stdout + result.stderr
    assert frontend.engine.requests, "no request came as far as the ranks"


def test_the_document_names_every_route(document: dict[str, Any]) -> None:
    assert set(document["paths"]) == {
        "/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{name}", "/tokenize", "/detokenize",
        "/health", "/ready", "/drain", "/metrics",
    }  # fmt: skip
