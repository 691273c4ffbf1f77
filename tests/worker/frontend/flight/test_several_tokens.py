"""One message may bring several tokens of a sequence: clients see what they see when the tokens come one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockstep_worker.wire.messages import FinishCode
from support.worlds.engine import say, say_forever
from support.worlds.frontend import END_ID, Frontend, encode, read_events, start_frontend, wait_until

TEXT = "k=4217 héllo 你好 😀 Q=0731"
IDS = encode(TEXT)
A = encode("a")[0]
GENERATED = "lockstep_generated_tokens_total"
STEPS = [2, 3, 64]
"""Tokens of each sequence in a message; the last holds whole outputs."""
Answer = dict[str, Any]


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend() as running:
        yield running


def ask(frontend: Frontend, stream: bool, **body: Any) -> Answer:
    """Return the choices, each with all of its text and logprobs, and the usage, however they came."""
    if not stream:
        reply: Answer = frontend.complete(**body).json()
        return {"choices": reply["choices"], "usage": reply["usage"]}
    *events, last = read_events(frontend.complete(**body, stream=True, stream_options={"include_usage": True}).text)
    choices: dict[int, Answer] = {}
    for part in (choice for event in events for choice in event["choices"]):
        whole = choices.setdefault(part["index"], {"index": part["index"], "text": "", "logprobs": None})
        whole["text"] += part["text"]
        whole["finish_reason"] = part["finish_reason"]
        if part["logprobs"] is not None:
            columns = whole["logprobs"] or {name: [] for name in part["logprobs"]}
            whole["logprobs"] = {name: columns[name] + part["logprobs"][name] for name in columns}
    return {"choices": [choices[index] for index in sorted(choices)], "usage": last["usage"]}


def compare(frontend: Frontend, tokens_a_step: int, stream: bool, **body: Any) -> Answer:
    """Ask twice, with one token a message and with several; the answers and the counts are equal."""
    answers, counts = [], []
    for frontend.engine.tokens_a_step in (1, tokens_a_step):
        before = frontend.metric(GENERATED)
        answers.append(ask(frontend, stream, **body))
        counts.append(frontend.metric(GENERATED) - before)
    frontend.engine.tokens_a_step = 1
    assert answers[0] == answers[1]
    assert counts == [answers[0]["usage"]["completion_tokens"]] * 2
    return answers[1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("code", [FinishCode.LENGTH, FinishCode.END_ID])
def test_the_answer_is_that_of_one_token_a_message(
    frontend: Frontend, step: int, stream: bool, code: FinishCode
) -> None:
    frontend.engine.script = say(IDS if code == FinishCode.LENGTH else [*IDS, END_ID], code)
    answer = compare(frontend, step, stream, n=2, logprobs=2)
    for choice in answer["choices"]:
        assert choice["text"] == TEXT
        assert choice["finish_reason"] == ("length" if code == FinishCode.LENGTH else "stop")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_what_comes_after_a_stop_string_is_dropped_and_not_counted(frontend: Frontend, step: int, stream: bool) -> None:
    frontend.engine.script = say(encode("one two END three four five six seven eight"))
    cut = encode("one two END")
    answer = compare(frontend, step, stream, stop="END", logprobs=0)
    [choice] = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("one two ", "stop")
    assert answer["usage"]["completion_tokens"] == len(choice["logprobs"]["tokens"]) == len(cut)
    frontend.wait_for_metric("lockstep_requests_in_flight", 0, 5)


def test_a_sequence_that_a_stop_string_ends_is_cancelled_once(frontend: Frontend) -> None:
    frontend.engine.script = say_forever(A)
    before, frontend.engine.tokens_a_step = len(frontend.engine.cancelled), 7
    answer = ask(frontend, False, stop="aaa", n=2)
    frontend.engine.tokens_a_step = 1
    assert answer["usage"]["completion_tokens"] == 6
    wait_until(lambda: not frontend.engine.running, 5)
    assert frontend.engine.cancelled[before:] == [request.handle for request in frontend.engine.requests[-2:]]


@pytest.mark.parametrize("step", STEPS)
def test_stop_strings_count_from_min_tokens_on_within_a_message(frontend: Frontend, step: int) -> None:
    frontend.engine.script = say(encode("a.b.c.d"))
    answer = compare(frontend, step, False, stop=".", min_tokens=4, max_tokens=7)
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("a.b", 4)


@pytest.mark.parametrize("step", STEPS)
def test_a_character_cut_by_the_length_is_flushed(frontend: Frontend, step: int) -> None:
    frontend.engine.script = say(encode("a😀")[:-1])
    assert compare(frontend, step, True)["choices"][0]["text"] == "a\ufffd"
