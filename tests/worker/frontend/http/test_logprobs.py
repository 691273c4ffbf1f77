"""Logprobs on their way from the link to the client, streamed and not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer, decoders, models

from lockstep_worker.frontend.flight.generation import Choice, Generation
from lockstep_worker.frontend.http.logprobs import LEAST, LogprobsWriter
from lockstep_worker.frontend.text.detokenize import build_pieces
from lockstep_worker.frontend.text.tokenizer import load_tokenizer
from lockstep_worker.wire.messages import FinishCode
from lockstep_worker.wire.params import SamplingParams
from support.worlds.engine import logprobs_for, say
from support.worlds.frontend import (
    END_ID,
    MODEL,
    MODEL_NAME,
    Frontend,
    encode,
    load_backend,
    read_events,
    start_frontend,
)

TEXT = "k=4217 é你😀"
IDS = [*encode(TEXT), END_ID]
PIECE = load_tokenizer(str(MODEL)).piece


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend() as running:
        running.engine.script = say(IDS, FinishCode.END_ID)
        yield running


def join_completion(parts: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [entry for part in parts for entry in part[name]] for name in names}


@pytest.mark.parametrize("asked", [0, 2, 20])
def test_a_completion_has_one_entry_a_token_streamed_and_not(frontend: Frontend, asked: int) -> None:
    whole = frontend.complete(logprobs=asked).json()
    found = whole["choices"][0]["logprobs"]
    assert {len(column) for column in found.values()} == {whole["usage"]["completion_tokens"]} == {len(IDS)}
    assert found["token_logprobs"] == [-1.0] * len(IDS)
    events = read_events(frontend.complete(logprobs=asked, stream=True).text)
    parts = [choice["logprobs"] for event in events for choice in event["choices"]]
    assert len(parts) > 3
    assert join_completion(parts) == found
    for token, top in zip(IDS, found["top_logprobs"], strict=True):
        _, ids, values = logprobs_for(token, asked)
        assert top.items() >= {PIECE(token).decode("utf-8", "replace"): -1.0}.items() or len(PIECE(token)) == 1
        assert min(asked, 1) <= len(top) <= asked + 1
        assert -0.25 in top.values() or not asked
        assert len(ids) == len(values) == asked


def test_offsets_are_where_a_tokens_text_begins(frontend: Frontend) -> None:
    choice = frontend.complete(logprobs=0).json()["choices"][0]
    text, tokens, offsets = choice["text"], choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert text == TEXT
    assert offsets == sorted(offsets)
    for token, offset in zip(tokens[:-1], offsets[:-1], strict=True):
        assert token.startswith("bytes:\\x") or text[offset:].startswith(token)
    assert any(token.startswith("bytes:\\x") for token in tokens), "the text must have characters of several tokens"
    assert (tokens[-1], offsets[-1]) == ("<|im_end|>", len(text))


def test_a_message_has_one_entry_a_token_streamed_and_not(frontend: Frontend) -> None:
    whole = frontend.chat(logprobs=True, top_logprobs=2).json()
    found = whole["choices"][0]["logprobs"]
    assert found["refusal"] is None
    assert len(found["content"]) == whole["usage"]["completion_tokens"] == len(IDS)
    assert b"".join(bytes(entry["bytes"]) for entry in found["content"]) == f"{TEXT}<|im_end|>".encode()
    for token, entry in zip(IDS, found["content"], strict=True):
        assert entry["token"] == PIECE(token).decode("utf-8", "replace")
        assert entry["logprob"] == -1.0
        assert [bytes(top["bytes"]) for top in entry["top_logprobs"]] == [PIECE(token ^ 1), PIECE(token ^ 2)]
        assert [top["logprob"] for top in entry["top_logprobs"]] == [-0.25, -0.5]
    events = read_events(frontend.chat(logprobs=True, top_logprobs=2, stream=True).text)
    parts = [c["logprobs"] for event in events for c in event["choices"] if c["logprobs"] is not None]
    assert [entry for part in parts for entry in part["content"]] == found["content"]


def test_logprobs_alone_bring_no_other_tokens(frontend: Frontend) -> None:
    content = frontend.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert len(content) == len(IDS)
    assert all(entry["top_logprobs"] == [] for entry in content)


@pytest.mark.parametrize("stream", [False, True])
def test_who_does_not_ask_gets_null_beside_those_who_do(frontend: Frontend, stream: bool) -> None:
    for fields in ({"logprobs": False}, {"logprobs": None}, {}):
        reply = frontend.chat(**fields, stream=stream)
        events = read_events(reply.text) if stream else [reply.json()]
        assert [c["logprobs"] for event in events for c in event["choices"]] == [None] * len(events)


def test_every_one_of_several_outputs_has_its_own(frontend: Frontend) -> None:
    events = read_events(frontend.complete(n=2, prompt=["a", "b"], logprobs=1, stream=True).text)
    for index in range(4):
        parts = [c["logprobs"] for event in events for c in event["choices"] if c["index"] == index]
        assert len(join_completion(parts)["tokens"]) == len(IDS)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_keeps_the_entries_of_all_tokens_that_are_counted(frontend: Frontend, stream: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    reply = frontend.complete(stop="21", logprobs=0, stream=stream, **options)
    if stream:
        *events, last = read_events(reply.text)
        parts, usage = [c["logprobs"] for event in events for c in event["choices"]], last["usage"]
    else:
        parts, usage = [reply.json()["choices"][0]["logprobs"]], reply.json()["usage"]
    tokens = join_completion(parts)["tokens"]
    assert len(tokens) == usage["completion_tokens"] < len(IDS)
    assert "".join(tokens).startswith("k=421")


def test_the_official_client_reads_them(frontend: Frontend) -> None:
    with openai.OpenAI(base_url=f"{frontend.url}/v1", api_key="x", _strict_response_validation=True) as client:
        chat = client.chat.completions.create(
            model=MODEL_NAME,
            messages=[{"role": "user", "content": "COPY"}],
            logprobs=True,
            top_logprobs=3,
            logit_bias={"5": -100},
            presence_penalty=0.5,
            frequency_penalty=0.5,
            extra_body={"repetition_penalty": 1.1},
        )
        content = chat.choices[0].logprobs and chat.choices[0].logprobs.content
        assert content and len(content) == len(IDS) and len(content[0].top_logprobs) == 3
        completion = client.completions.create(model=MODEL_NAME, prompt="COPY", logprobs=3)
        logprobs = completion.choices[0].logprobs
        assert logprobs and logprobs.tokens and logprobs.top_logprobs and len(logprobs.tokens) == len(IDS)
        with client.chat.completions.stream(
            model=MODEL_NAME, messages=[{"role": "user", "content": "COPY"}], logprobs=True
        ) as stream:
            final = stream.get_final_completion().choices[0].logprobs
            assert final and final.content and len(final.content) == len(IDS)


# --- pieces and extremes ---------------------------------------------------------------------------------------------
def test_the_pieces_of_a_text_are_its_bytes() -> None:
    piece = build_pieces(load_backend())
    assert b"".join(piece(token) for token in encode("héllo 😀")) == "héllo 😀".encode()
    assert piece(END_ID) == b"<|im_end|>"
    assert piece(10**6) == b""


def test_pieces_of_a_sentencepiece_vocabulary_have_their_spaces_and_bytes() -> None:
    backend = Tokenizer(models.BPE(vocab={"\u2581the": 0, "<0xE4>": 1, "a": 2}, merges=[]))
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    assert [build_pieces(backend)(token) for token in range(4)] == [b" the", b"\xe4", b"a", b""]


def test_minus_infinity_becomes_a_number_and_equal_names_keep_the_best() -> None:
    names = {1: b"a", 2: b"a", 3: b"\xff"}
    params = SamplingParams(max_tokens=5, logprobs=3)
    choice = Choice(index=0, prompt=[1], params=params, detokenizer=load_tokenizer(str(MODEL)).detokenizer([1]))
    Generation([choice], prompt_tokens=1, is_streamed=False, arrived_s=0)
    choice.push(3, 0, (float("-inf"), [1, 2, 3], [-0.5, -1.5, float("-inf")]))
    found = LogprobsWriter(names.__getitem__).for_completion(choice)
    assert found is not None
    assert found.top_logprobs == [{"a": -0.5, "bytes:\\xff": LEAST}]
    assert found.token_logprobs == [LEAST]
