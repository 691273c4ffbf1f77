"""Random models of many families: logits against transformers' own eager attention, tokens against `generate`."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from support.data.tiny_models import CONFIGS, VOCAB, save_tiny_model
from support.worlds.greedy import GreedyDriver, Sequence, pack

LENGTHS = (1, 5, 9, 20, 33)


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Any]:
    """Our model and transformers' own."""
    path: Path = save_tiny_model(request.param, tmp_path_factory.mktemp("models"))
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32, local_files_only=True
    )
    return load_model(str(path), device=torch.device("cpu"), dtype="float32"), reference.eval()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in LENGTHS]


def test_tokens_equal_transformers(pair: tuple[Model, Any], prompts: list[list[int]]) -> None:
    model, reference = pair
    expected = [
        reference.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    assert GreedyDriver(model, chunk=7).run(prompts, 16) == expected


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_logits_equal_transformers_at_every_chunk_end(
    pair: tuple[Model, Any], prompts: list[list[int]], chunk: int
) -> None:
    model, reference = pair
    driver = GreedyDriver(model)
    sequences = [driver.start(prompt, 1) for prompt in prompts]
    for sequence in sequences:
        sequence.blocks += driver.pool.allocate(-(-len(sequence.tokens) // 8))
    with torch.no_grad():
        expected = [reference(torch.tensor([prompt])).logits[0] for prompt in prompts]
    while any(one.num_computed < len(one.tokens) for one in sequences):
        _compare_one_step(model, sequences, expected, chunk)


def _compare_one_step(model: Model, sequences: list[Sequence], expected: list[torch.Tensor], chunk: int) -> None:
    """Compute a chunk of every unfinished sequence, then compare the logits of each chunk's last token."""
    todo = [index for index, one in enumerate(sequences) if one.num_computed < len(one.tokens)]
    cut = []
    for index in todo:
        one = sequences[index]
        end = min(one.num_computed + chunk, len(one.tokens))
        cut.append(Sequence(one.tokens[:end], end, 1, one.blocks, one.num_computed))
        one.num_computed = end
    counts = [len(one.tokens) - one.num_computed for one in cut]
    logits = model.forward(pack(cut, counts, 8, model.device))
    wanted = torch.stack([expected[index][len(one.tokens) - 1] for index, one in zip(todo, cut, strict=True)])
    torch.testing.assert_close(logits, wanted, atol=2e-3, rtol=1e-3)
