import random
from typing import Any

import pytest
import torch

from lockstep_worker.model.forward import Model
from support.data import recall_model
from support.worlds.greedy import GreedyDriver, Sequence, pack

LIMIT = 40


@pytest.fixture(scope="module")
def model() -> Model:
    return recall_model.load_recall()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Prompts with known answers, and random ones of awkward lengths around a block's size."""
    tokens = recall_model.tokenizer()
    rng = random.Random(4)
    asked = [recall_model.encode_prompt(tokens, one) for one in recall_model.conversations(1, 6)]
    return asked + [[rng.randrange(3, 448) for _ in range(length)] for length in (1, 2, 7, 8, 9, 16, 33)]


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]]) -> list[list[int]]:
    reference = recall_model.reference()
    return [recall_model.generate(reference, prompt, LIMIT) for prompt in prompts]


@pytest.mark.parametrize("chunk", [1, 3, 13, 1000])
def test_tokens_equal_transformers_for_any_chunk(
    model: Model, prompts: list[list[int]], expected: list[list[int]], chunk: int
) -> None:
    driver = GreedyDriver(model, chunk=chunk)
    assert driver.run(prompts, LIMIT) == expected
    assert driver.pool.num_free == driver.pool.num_blocks


@pytest.mark.parametrize("block_size", [1, 5, 64])
def test_tokens_do_not_depend_on_the_block_size(
    model: Model, prompts: list[list[int]], expected: list[list[int]], block_size: int
) -> None:
    driver = GreedyDriver(model, num_blocks=3200 // block_size, block_size=block_size, chunk=50)
    assert driver.run(prompts, LIMIT) == expected


def test_prompts_that_join_a_running_batch_get_the_same_tokens(
    model: Model, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    driver = GreedyDriver(model, chunk=11)
    sequences: list[Sequence] = []
    waiting = list(prompts)
    while waiting or not all(one.done for one in sequences):
        if waiting:
            sequences.append(driver.start(waiting.pop(0), LIMIT))
        driver.step(sequences)
    assert [one.generated for one in sequences] == expected


def test_a_cached_prefix_gives_the_same_tokens(
    model: Model, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    driver = GreedyDriver(model)
    driver.run(prompts, LIMIT)
    assert driver.hit_tokens == 0
    assert driver.run(prompts, LIMIT) == expected
    assert driver.hit_tokens == sum((len(prompt) - 1) // 8 * 8 for prompt in prompts)


def test_evicted_and_reused_blocks_give_the_same_tokens(
    model: Model, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    longest = max(len(prompt) for prompt in prompts) + LIMIT
    driver = GreedyDriver(model, num_blocks=-(-longest // 8), block_size=8)  # room for one sequence at a time
    assert [driver.run([prompt], LIMIT)[0] for prompt in prompts] == expected


def test_prompts_that_share_a_start_and_then_differ_stay_apart(model: Model) -> None:
    tokens, reference = recall_model.tokenizer(), recall_model.reference()
    conversation = recall_model.conversations(3, 3)[2]
    table = conversation[0]["content"].split("?")[0]
    asked = [[{"role": "user", "content": f"{table}? {pair[0]}"}, {}] for pair in table.split()[:4]]
    prompts = [recall_model.encode_prompt(tokens, one) for one in asked]
    driver = GreedyDriver(model)
    assert [driver.run([one], LIMIT)[0] for one in prompts] == [
        recall_model.generate(reference, one, LIMIT) for one in prompts
    ]
    assert driver.hit_tokens > 3 * len(table) // 2


def test_a_step_that_finishes_no_prompt_returns_no_row(model: Model) -> None:
    driver = GreedyDriver(model)
    sequence = driver.start(list(range(3, 23)), 1)
    sequence.blocks += driver.pool.allocate(2)
    logits = model.forward(pack([sequence], [9], 8, model.device))
    assert logits.shape == (0, model.vocab_size)


def test_logits_equal_the_reference_and_are_float32(model: Model) -> None:
    reference = recall_model.reference()
    prompt = [random.Random(9).randrange(3, 448) for _ in range(50)]
    driver = GreedyDriver(model)
    sequence = driver.start(prompt, 1)
    sequence.blocks += driver.pool.allocate(7)
    logits = model.forward(pack([sequence], [50], 8, model.device))
    with torch.no_grad():
        expected: Any = reference(torch.tensor([prompt])).logits[0, -1:]
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_a_row_in_unused_blocks_changes_nobody(model: Model) -> None:
    """A padded row: position 0, its own scratch block."""
    driver = GreedyDriver(model)
    sequence, scratch = driver.start(list(range(3, 20)), 1), driver.start([3], 1)
    sequence.blocks += driver.pool.allocate(3)
    scratch.blocks += driver.pool.allocate(1)
    alone = model.forward(pack([sequence], [17], 8, model.device))
    beside = model.forward(pack([scratch, sequence], [1, 17], 8, model.device))
    torch.testing.assert_close(beside[1:], alone, atol=1e-5, rtol=1e-5)


def test_the_model_says_what_the_scheduler_needs(model: Model) -> None:
    assert (model.vocab_size, model.max_model_len, model.end_ids) == (448, 1024, (2,))
    assert (model.num_layers, model.kv_heads_local, model.head_dim) == (4, 2, 32)
    assert (model.dtype, model.device) == (torch.float32, torch.device("cpu"))
    assert model.kv_bytes_per_block(16) == 2 * 4 * 16 * 2 * 32 * 4
