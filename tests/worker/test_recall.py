"""The small model gives the right answers through our engine, and its training repeats."""

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models.recall import tasks, train
from support import recall_model
from support.greedy import GreedyDriver


@pytest.fixture
def torch_settings() -> Iterator[None]:
    """Put back what training sets for its whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def test_held_out_prompts_are_answered_exactly() -> None:
    tokens = recall_model.tokenizer()
    driver = GreedyDriver(recall_model.load_recall(), num_blocks=1200, block_size=16, chunk=128)
    rng = random.Random(10_077)
    conversations = [tasks.recall(rng, size, 3) for size in range(8, 31) for _ in range(2)]
    conversations += [tasks.copy(rng, size) for size in range(8, 21) for _ in range(2)]
    conversations += [tasks.reverse(rng, size) for size in range(4, 15) for _ in range(2)]
    prompts = [recall_model.encode_prompt(tokens, one) for one in conversations]
    answers = [
        tokens.decode(ids, skip_special_tokens=True)
        for start in range(0, len(prompts), 24)
        for ids in driver.run(prompts[start : start + 24], 64)
    ]
    wrong = [one for one, answer in zip(conversations, answers, strict=True) if answer != one[-1]["content"]]
    assert len(wrong) <= 0.01 * len(conversations), wrong


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
