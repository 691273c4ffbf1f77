"""The small model gives the right answers through our engine, and its training repeats."""

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep_worker.model.forward import Model
from lockstep_worker.wire.params import SamplingParams
from models.recall import tasks, train
from support.data import recall_model
from support.worlds.local_group import LocalGroup

NUM_QUESTIONS, LIMIT = 100, 64


@pytest.fixture
def torch_settings() -> Iterator[None]:
    """Put back what training sets for its whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def engine() -> Model:
    return recall_model.load_recall()


@pytest.fixture(scope="module")
def reference() -> Any:
    return recall_model.reference()


@pytest.mark.parametrize("name", ["recall8", "recall16", "recall30", "copy16", "reverse16"])
def test_held_out_questions_are_answered_exactly_by_the_engine_and_by_transformers(
    name: str, engine: Model, reference: Any
) -> None:
    rng, tokens = random.Random(10_077), recall_model.tokenizer()
    conversations = [tasks.HELD_OUT[name](rng) for _ in range(NUM_QUESTIONS)]
    prompts = [recall_model.encode_prompt(tokens, one) for one in conversations]
    params = SamplingParams(max_tokens=LIMIT, temperature=0.0, end_ids=engine.end_ids)
    ours = LocalGroup(engine, num_blocks=4000).generate(prompts, params)
    [length] = {len(prompt) for prompt in prompts}  # so that transformers can take them as one batch without padding
    theirs = reference.generate(torch.tensor(prompts), max_new_tokens=LIMIT, do_sample=False)[:, length:].tolist()
    right = [one[-1]["content"] for one in conversations]
    for ids in (ours, theirs):
        answers = [tokens.decode(one, skip_special_tokens=True) for one in ids]
        hits = sum(answer == expected for answer, expected in zip(answers, right, strict=True))
        assert hits >= 0.99 * NUM_QUESTIONS, list(zip(answers, right, strict=True))
    assert [one[: len(mine)] for one, mine in zip(theirs, ours, strict=True)] == ours


@pytest.mark.parametrize("name", tasks.HELD_OUT)
def test_a_task_has_the_answer_that_its_words_ask_for(name: str) -> None:
    conversation = tasks.HELD_OUT[name](random.Random(5))
    question, answer = conversation[-2]["content"], conversation[-1]["content"]
    if name.startswith("recall"):
        pairs = dict(pair.split("=") for one in conversation for pair in one["content"].split() if "=" in pair)
        assert answer == " ".join(f"{key}={pairs[key]}" for key in question.split("? ")[-1].split())
    elif name.startswith("copy"):
        assert question == "COPY " + answer
    else:
        assert question == "REVERSE " + answer[::-1]


def test_the_same_seed_trains_the_same_weights(tmp_path: Path, torch_settings: None) -> None:
    def digest(folder: str, seed: int) -> str:
        sizes = ["--steps", "4", "--layers", "1", "--tokens", "256", "--threads", "1", "--measure", "0"]
        train.main([str(tmp_path / folder), "--seed", str(seed), *sizes])
        return hashlib.sha256((tmp_path / folder / "model.safetensors").read_bytes()).hexdigest()

    first = digest("first", 1)
    torch.rand(7)  # training seeds itself: what ran before does not matter
    assert digest("again", 1) == first
    assert digest("other", 2) != first


def test_training_makes_the_tokenizer_that_the_model_ships_with(tmp_path: Path) -> None:
    train.build_tokenizer().save_pretrained(tmp_path)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_text() == (recall_model.PATH / name).read_text()
