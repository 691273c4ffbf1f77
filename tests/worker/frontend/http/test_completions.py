from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from lockstep_worker.wire.messages import FinishCode, NewRequest
from lockstep_worker.wire.params import SamplingParams
from support.worlds.engine import Script, say
from support.worlds.frontend import END_ID, Frontend, encode, load_backend, read_events, start_frontend

TEXT = "k=4217 héllo 你好 😀 Q=0731"


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend() as running:
        yield running


def say_by_prompt(texts: dict[str, str]) -> Script:
    def script(request: NewRequest) -> Iterable[tuple[int, int]]:
        return say(encode(texts[load_backend().decode(request.prompt)]))(request)

    return script


def texts_of(events: list[dict[str, Any]], num_choices: int = 1) -> list[str]:
    texts = [""] * num_choices
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    return texts


@pytest.mark.parametrize(
    ("code", "last", "reason"),
    [
        pytest.param(FinishCode.LENGTH, encode("!")[0], "length", id="length"),
        pytest.param(FinishCode.END_ID, END_ID, "stop", id="end id"),
        pytest.param(FinishCode.STOP_WORDS, encode("!")[0], "stop", id="stop token id"),
    ],
)
def test_the_finish_code_gives_the_reason_and_only_text_is_text(
    frontend: Frontend, code: FinishCode, last: int, reason: str
) -> None:
    ids = [*encode(TEXT), last]
    frontend.engine.script = say(ids, code)
    reply = frontend.complete(prompt="k=4217 ? k").json()
    choice = reply["choices"][0]
    assert choice["finish_reason"] == reason
    assert choice["text"] == TEXT + ("!" if reason == "length" else "")
    prompt_tokens = len(encode("k=4217 ? k"))
    assert reply["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(ids),
        "total_tokens": prompt_tokens + len(ids),
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert reply["object"] == "text_completion"


def test_a_stream_has_the_text_and_the_usage_of_the_whole_answer(frontend: Frontend) -> None:
    frontend.engine.script = say([*encode(TEXT), END_ID], FinishCode.END_ID)
    whole = frontend.complete().json()
    reply = frontend.complete(stream=True, stream_options={"include_usage": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, last = read_events(reply.text)
    assert texts_of(events) == [whole["choices"][0]["text"]] == [TEXT]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["stop"]
    assert all(event["usage"] is None for event in events)
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    assert len({event["id"] for event in [*events, last]}) == 1
    assert "\ufffd" not in reply.text


@pytest.mark.parametrize("n", [1, 3])
def test_cached_tokens_count_once_for_each_prompt_streamed_or_not(frontend: Frontend, n: int) -> None:
    frontend.engine.script = say(encode("ab"))
    frontend.engine.cached_tokens = 3
    try:
        body = {"prompt": ["COPY", "COPY ab"], "n": n}
        whole = frontend.complete(**body).json()
        *_, last = read_events(frontend.complete(**body, stream=True, stream_options={"include_usage": True}).text)
    finally:
        frontend.engine.cached_tokens = 0
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}
    assert last["usage"] == whole["usage"]


def test_a_stream_without_the_option_has_no_usage(frontend: Frontend) -> None:
    frontend.engine.script = say(encode("ab"))
    assert all("usage" not in event for event in read_events(frontend.complete(stream=True).text))


def test_a_character_cut_by_the_length_is_flushed_in_both_forms(frontend: Frontend) -> None:
    frontend.engine.script = say(encode("a😀")[:-1])
    whole = frontend.complete().json()["choices"][0]["text"]
    assert whole == "a\ufffd"
    assert texts_of(read_events(frontend.complete(stream=True).text)) == [whole]


def test_each_of_n_choices_has_its_own_index_text_and_reason(frontend: Frontend) -> None:
    answers = {0: ("ab", FinishCode.LENGTH), 1: ("cdef", FinishCode.LENGTH), 2: ("g", FinishCode.END_ID)}
    first = len(frontend.engine.requests)

    def script(request: NewRequest) -> Iterable[tuple[int, int]]:
        position = [r.handle for r in frontend.engine.requests[first:]].index(request.handle)
        text, code = answers[position % 3]
        return say([*encode(text), END_ID] if code == FinishCode.END_ID else encode(text), code)(request)

    frontend.engine.script = script
    whole = frontend.complete(n=3).json()
    assert [c["text"] for c in whole["choices"]] == ["ab", "cdef", "g"]
    assert [c["finish_reason"] for c in whole["choices"]] == ["length", "length", "stop"]
    assert whole["usage"]["completion_tokens"] == 2 + 4 + 2
    assert whole["usage"]["prompt_tokens"] == len(encode("COPY"))
    *events, last = read_events(frontend.complete(n=3, stream=True, stream_options={"include_usage": True}).text)
    assert texts_of(events, 3) == ["ab", "cdef", "g"]
    reasons = {c["index"]: c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]}
    assert reasons == {0: "length", 1: "length", 2: "stop"}
    assert last["usage"] == whole["usage"]


@pytest.mark.parametrize(
    "prompts",
    [["ab", "cd"], [encode("ab"), encode("cd")]],
    ids=["texts", "ids"],
)
def test_a_batch_of_prompts_keeps_its_order(frontend: Frontend, prompts: list[Any]) -> None:
    frontend.engine.script = say_by_prompt({"ab": "COPY ab and more", "cd": "c"})
    reply = frontend.complete(prompt=prompts, n=2).json()
    assert [c["text"] for c in reply["choices"]] == ["COPY ab and more"] * 2 + ["c"] * 2
    assert [c["index"] for c in reply["choices"]] == [0, 1, 2, 3]
    assert reply["usage"]["prompt_tokens"] == 4


def test_token_ids_go_to_the_ranks_as_they_are(frontend: Frontend) -> None:
    frontend.engine.script = say(encode("ok"))
    ids = [0, 447, 5, 1, 2]
    assert frontend.complete(prompt=ids).json()["usage"]["prompt_tokens"] == 5
    assert frontend.engine.requests[-1].prompt == ids


@pytest.mark.parametrize("prompt", ["COPY héllo", encode("COPY héllo")], ids=["text", "ids"])
def test_echo_puts_the_prompt_before_the_output(frontend: Frontend, prompt: Any) -> None:
    frontend.engine.script = say(encode(" ok"))
    assert frontend.complete(prompt=prompt, echo=True).json()["choices"][0]["text"] == "COPY héllo ok"
    events = read_events(frontend.complete(prompt=prompt, echo=True, stream=True, stop="COPY").text)
    assert texts_of(events) == ["COPY héllo ok"]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_without_output_asks_no_rank(frontend: Frontend, stream: bool) -> None:
    asked = len(frontend.engine.requests)
    reply = frontend.complete(prompt="COPY ab", echo=True, max_tokens=0, stream=stream)
    if stream:
        assert texts_of(read_events(reply.text)) == ["COPY ab"]
    else:
        assert reply.json()["choices"][0] == {
            "index": 0,
            "text": "COPY ab",
            "logprobs": None,
            "finish_reason": "length",
        }
        assert reply.json()["usage"]["completion_tokens"] == 0
    assert len(frontend.engine.requests) == asked


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_cuts_the_text_and_cancels_the_sequence(frontend: Frontend, stream: bool) -> None:
    ids = encode("one two END three four five six seven")
    frontend.engine.script = say(ids)
    cancelled = len(frontend.engine.cancelled)
    reply = frontend.complete(
        stop=["never", "END"], stream=stream, **({"stream_options": {"include_usage": True}} if stream else {})
    )
    if stream:
        *events, last = read_events(reply.text)
        text, reason, usage = texts_of(events)[0], events[-1]["choices"][0]["finish_reason"], last["usage"]
        assert "E" not in reply.text.split("[DONE]")[0], "no beginning of a stop string may go out"
    else:
        choice, usage = reply.json()["choices"][0], reply.json()["usage"]
        text, reason = choice["text"], choice["finish_reason"]
    assert (text, reason) == ("one two ", "stop")
    assert usage["completion_tokens"] == len(encode("one two END"))
    handle = frontend.engine.requests[-1].handle
    frontend.wait_for_metric("lockstep_requests_in_flight", 0, 5)
    assert frontend.engine.cancelled[cancelled:] == [handle]


def test_a_stop_string_on_the_last_token_is_a_stop(frontend: Frontend) -> None:
    frontend.engine.script = say(encode("ab."), FinishCode.LENGTH)
    choice = frontend.complete(stop=".").json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")


def test_the_beginning_of_a_stop_string_comes_out_at_the_end(frontend: Frontend) -> None:
    frontend.engine.script = say(encode("ab EN"))
    choice = frontend.complete(stop="END").json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab EN", "length")


def test_stop_strings_count_from_min_tokens_on(frontend: Frontend) -> None:
    frontend.engine.script = say(encode("a.b.c.d"))
    assert frontend.complete(stop=".", min_tokens=4, max_tokens=7).json()["choices"][0]["text"] == "a.b"


def test_one_token_is_one_token(frontend: Frontend) -> None:
    frontend.engine.script = say(encode("a"))
    reply = frontend.complete(max_tokens=1).json()
    assert reply["usage"]["completion_tokens"] == 1
    assert reply["choices"][0]["finish_reason"] == "length"
    assert frontend.engine.requests[-1].params.max_tokens == 1


def test_every_field_reaches_the_ranks(frontend: Frontend) -> None:
    frontend.engine.script = say(encode("a"))
    fields: dict[str, Any] = {"temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.25, "seed": 42, "max_tokens": 9}
    fields |= {"repetition_penalty": 1.5, "presence_penalty": -0.5, "frequency_penalty": 2, "logprobs": 4}
    bias = {"447": -100, "0": 100, "5": 0.5}
    fields |= {"logit_bias": bias, "priority": -3}
    assert frontend.complete(**fields, min_tokens=3, stop_token_ids=[9, 8, 9]).status_code == 200
    assert frontend.engine.requests[-1].priority == fields.pop("priority")
    fields.pop("logit_bias")
    assert frontend.engine.requests[-1].params == SamplingParams(
        **fields,
        min_tokens=3,
        end_ids=(END_ID,),
        stop_token_ids=(8, 9),
        logit_bias=((0, 100.0), (5, 0.5), (447, -100.0)),
    )


def test_left_out_fields_have_no_effect(frontend: Frontend) -> None:
    frontend.engine.script = say(encode("a"))
    nothing = dict.fromkeys(("temperature", "top_p", "min_p", "seed", "max_tokens", "stop", "n", "stream"))
    nothing |= dict.fromkeys(("logprobs", "top_logprobs", "logit_bias", "presence_penalty", "repetition_penalty"))
    assert frontend.complete(**nothing, top_k=-1, frequency_penalty=0).status_code == 200
    params = frontend.engine.requests[-1].params
    assert frontend.engine.requests[-1].priority == 0
    assert params == SamplingParams(max_tokens=16, seed=params.seed, end_ids=(END_ID,))


def test_ignore_eos_leaves_the_model_no_end_id(frontend: Frontend) -> None:
    frontend.engine.script = say(encode("a"))
    frontend.complete(ignore_eos=True)
    assert frontend.engine.requests[-1].params.end_ids == ()


def test_seeds_repeat_when_given_and_differ_when_not(frontend: Frontend) -> None:
    frontend.engine.script = say(encode("a"))

    def seeds(**body: Any) -> list[int]:
        before = len(frontend.engine.requests)
        assert frontend.complete(**body).status_code == 200
        return [request.params.seed for request in frontend.engine.requests[before:]]

    assert seeds(seed=5) == [5]
    assert seeds(seed=5, n=3) == seeds(seed=5, n=3)
    assert seeds(seed=5, n=3)[0] == 5
    drawn = seeds(n=4) + seeds(n=4) + seeds(seed=5, n=4)
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= seed < 2**63 for seed in [*drawn, *seeds(seed=-(2**63)), *seeds(seed=2**63 - 1)])
