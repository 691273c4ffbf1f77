"""The handle table against messages of the test's own, entry by entry."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from lockstep_worker.frontend.flight import ranks as module
from lockstep_worker.frontend.flight.availability import Availability
from lockstep_worker.frontend.flight.generation import Choice, Generation
from lockstep_worker.frontend.flight.ranks import Ranks
from lockstep_worker.frontend.settings import FrontendSettings
from lockstep_worker.frontend.text.tokenizer import load_tokenizer
from lockstep_worker.metrics.families import FrontendMetrics
from lockstep_worker.wire.messages import Cancel, EngineDown, FinishCode, NewRequest, Progress, Refused, Tokens
from lockstep_worker.wire.params import SamplingParams
from support.worlds.engine import logprobs_for, pack_logprobs
from support.worlds.frontend import MODEL, encode, settings_for

TOKENIZER = load_tokenizer(str(MODEL))
UNKNOWN = 10**9
A, B = encode("a")[0], encode("b")[0]
Entry = tuple[int, int, int]
"""Handle, token, finish code."""


def letters(text: str) -> list[int]:
    """One id a letter."""
    return [encode(letter)[0] for letter in text]


class World:
    """The ranks as the frontend sees them, with a clock that the test sets and a link that keeps what it is given."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        addresses = {"inbound": f"ipc://{directory}/in", "outbound": f"ipc://{directory}/out"}
        self.registry = CollectorRegistry()
        self.exit_codes: list[int] = []
        settings = msgspec.convert(settings_for(**addresses), FrontendSettings)
        metrics = FrontendMetrics(self.registry, "recall")
        self.ranks = Ranks(
            settings,
            metrics,
            Availability(settings, metrics),
            on_down=self.exit_codes.append,
            on_drained=lambda: None,
        )
        self.sent: list[Any] = []
        self.now_s = 100.0
        monkeypatch.setattr(self.ranks._link, "send", self.sent.append)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.ranks.receive([Progress(0, 0, 0, 0, 1)])

    def open(self, num_choices: int = 1, stops: tuple[str, ...] = (), logprobs: int = -1) -> Generation:
        params = SamplingParams(max_tokens=100, logprobs=logprobs)
        choices = [
            Choice(index=index, prompt=[5], params=params, detokenizer=TOKENIZER.detokenizer([5]), stops=stops)
            for index in range(num_choices)
        ]
        generation = Generation(choices, prompt_tokens=1, is_streamed=True, arrived_s=self.now_s)
        self.ranks.open(generation)
        return generation

    def tell(self, *entries: Entry, **fields: Any) -> None:
        """Bring these entries in one message."""
        handles, tokens, codes = zip(*entries, strict=True)
        self.ranks.receive([Tokens.pack(0, 0, handles, tokens, codes, **fields)])

    def value(self, name: str) -> float:
        return self.registry.get_sample_value(f"lockstep_{name}") or 0.0

    @property
    def cancelled(self) -> list[int]:
        return [message.handle for message in self.sent if isinstance(message, Cancel)]


def within(monkeypatch: pytest.MonkeyPatch, directory: Path, scenario: Callable[[World], None]) -> None:
    """Run a scenario on an event loop, as the link needs one."""

    async def run() -> None:
        world = World(directory, monkeypatch)
        scenario(world)
        world.ranks.disconnect()

    asyncio.run(run())


@pytest.mark.parametrize("is_interleaved", [False, True])
def test_each_entry_finds_its_choice_and_its_own_logprobs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_interleaved: bool
) -> None:
    def scenario(world: World) -> None:
        first, second = world.open(2, logprobs=2).choices
        columns = [
            [(choice.handle, token, 0) for token in letters(text)]
            for choice, text in ((first, "wxyz"), (second, "stuv"))
        ]
        pairs = zip(*columns, strict=True) if is_interleaved else columns
        entries = [(UNKNOWN, A, 0), *itertools.chain.from_iterable(pairs)]  # logprobs count entries, not tokens taken
        told = {index: logprobs_for(token, 2) for index, (_, token, _) in enumerate(entries) if index}
        world.tell(*entries, logprobs=pack_logprobs(told))
        for choice, text in ((first, "wxyz"), (second, "stuv")):
            taken = choice.take_logprobs()
            assert choice.take_text() == text
            assert [one.token for one in taken] == letters(text)
            assert [one.top[0][0] for one in taken] == [token ^ 1 for token in letters(text)]
            assert [one.offset for one in taken] == [0, 1, 2, 3]

    within(monkeypatch, tmp_path, scenario)


def test_the_finish_code_of_the_last_entry_ends_the_choice_and_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def scenario(world: World) -> None:
        generation = world.open(2)
        first, second = generation.choices
        world.tell(
            (first.handle, A, 0), (first.handle, B, FinishCode.LENGTH), (second.handle, A, 0), (first.handle, A, 0)
        )
        assert (first.finish_reason, first.num_tokens, first.take_text()) == ("length", 2, "ab")
        assert (second.finish_reason, generation.outcome) == (None, None)
        world.tell((second.handle, B, 0), (second.handle, B, FinishCode.LENGTH), (first.handle, A, 0))
        assert (second.num_tokens, first.num_tokens, generation.outcome) == (3, 2, "length")
        assert world.value("generated_tokens_total") == 5
        assert world.cancelled == []

    within(monkeypatch, tmp_path, scenario)


@pytest.mark.parametrize("last", [0, FinishCode.LENGTH, FinishCode.END_ID])
def test_a_stop_string_in_the_middle_drops_what_follows_whatever_ends_it_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, last: int
) -> None:
    def scenario(world: World) -> None:
        generation = world.open(2, stops=("b",))
        first, second = generation.choices
        tokens = [A, B, A, B]
        entries = [(first.handle, token, 0) for token in tokens[:-1]] + [(first.handle, tokens[-1], last)]
        world.tell(*entries, (second.handle, A, 0))
        assert (first.finish_reason, first.num_tokens, first.take_text()) == ("stop", 2, "a")
        assert world.cancelled == [first.handle]
        assert (second.finish_reason, second.num_tokens) == (None, 1)
        assert world.value("generated_tokens_total") == 3
        world.tell((first.handle, -1, FinishCode.CANCELLED))  # the ranks' answer to the cancel
        assert generation.outcome is None

    within(monkeypatch, tmp_path, scenario)


def test_a_cancel_behind_tokens_of_the_same_message_ends_the_request_and_frees_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def scenario(world: World) -> None:
        generation = world.open(2)
        first, second = generation.choices
        world.tell((first.handle, A, 0), (first.handle, -1, FinishCode.CANCELLED), (second.handle, A, 0))
        assert generation.outcome == "cancelled"
        assert (first.num_tokens, second.num_tokens) == (1, 0)
        assert second.handle in world.cancelled
        assert len(world.cancelled) == len(set(world.cancelled))
        assert world.value("generated_tokens_total") == 1

    within(monkeypatch, tmp_path, scenario)


def test_the_tokens_of_a_message_share_its_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def scenario(world: World) -> None:
        [choice] = world.open().choices
        entry = (choice.handle, A, 0)
        world.now_s += 0.5
        world.tell(entry, entry, entry)  # the first token's time is that of the other two as well
        assert world.value("time_to_first_token_seconds_sum") == 0.5
        assert world.value("time_to_first_token_seconds_count") == 1
        assert world.value("inter_token_seconds_count") == 0
        world.now_s += 0.4
        world.tell(entry, entry, entry, entry)
        assert world.value("inter_token_seconds_count") == 4
        assert world.value("inter_token_seconds_sum") == pytest.approx(0.4)
        buckets = {le: world.registry.get_sample_value("lockstep_inter_token_seconds_bucket", {"le": le}) for le in LE}
        assert buckets == {"0.05": 0, "0.25": 4}
        world.now_s += 0.2
        world.tell(entry)
        assert world.value("inter_token_seconds_count") == 5
        assert world.value("inter_token_seconds_sum") == pytest.approx(0.6)

    within(monkeypatch, tmp_path, scenario)


LE = ("0.05", "0.25")


@pytest.mark.parametrize("way", ["ended", "stopped", "refused", "cancelled", "closed", "timed out", "lost"])
def test_a_handle_leaves_the_table_once_and_is_unknown_from_then_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    def scenario(world: World) -> None:
        generation = world.open(stops=("b",))
        [choice] = generation.choices
        match way:
            case "ended":
                world.tell((choice.handle, A, FinishCode.LENGTH))
            case "stopped":
                world.tell((choice.handle, B, 0))
            case "refused":
                world.ranks.receive([Refused(choice.handle, "it does not fit", "prompt")])
            case "cancelled":
                world.tell((choice.handle, -1, FinishCode.CANCELLED))
            case "closed":
                world.ranks.close(generation)
            case "timed out":
                world.ranks.end(generation, "timeout", None)
            case "lost":
                world.ranks.receive([EngineDown(0, "it is gone", 87)])
        num_tokens, counted, cancelled = choice.num_tokens, world.value("generated_tokens_total"), world.cancelled
        assert cancelled == ([choice.handle] if way in {"stopped", "cancelled", "closed", "timed out"} else [])
        outcome = generation.outcome
        world.tell((choice.handle, A, 0), (choice.handle, -1, FinishCode.CANCELLED))
        world.ranks.receive([Refused(choice.handle, "late")])
        for _ in range(2):
            world.ranks.end(generation, "disconnect", None)
            world.ranks.close(generation)
        assert (choice.num_tokens, world.value("generated_tokens_total")) == (num_tokens, counted)
        assert world.cancelled == cancelled
        assert generation.outcome == (outcome or "disconnect")
        assert (world.ranks.num_open, world.value("requests_in_flight")) == (0, 0)
        assert world.value("request_seconds_count") == 1

    within(monkeypatch, tmp_path, scenario)


def test_handles_are_never_used_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def scenario(world: World) -> None:
        for _ in range(3):
            world.ranks.close(world.open(2))
        handles = [message.handle for message in world.sent if isinstance(message, NewRequest)]
        assert len(set(handles)) == len(handles) == 6

    within(monkeypatch, tmp_path, scenario)
