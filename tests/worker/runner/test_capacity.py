"""What does not fit is refused at the start, by the name of the option that decides it."""

from __future__ import annotations

import pytest
import torch

from lockstep_worker.config import Config
from lockstep_worker.errors import ConfigError
from lockstep_worker.runner.capacity import choose_num_blocks, create_cache

CUDA = torch.device("cuda")
BLOCK_BYTES = 1 << 20
FREE_BLOCKS = 1000


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with so much free memory, the weights loaded."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (FREE_BLOCKS * BLOCK_BYTES, 1 << 40))


def choose(run_blocks: int, max_model_len: int = 1600, **options: float) -> int:
    config = Config(model="m", **options)  # type: ignore[arg-type]
    return choose_num_blocks(config, BLOCK_BYTES, max_model_len, CUDA, run_blocks * BLOCK_BYTES)


def test_what_the_largest_run_takes_holds_no_blocks() -> None:
    assert choose(0, kv_cache_memory_fraction=0.5) == 499  # one is nobody's
    assert choose(600, kv_cache_memory_fraction=0.5) == 199


def test_a_run_that_leaves_too_little_is_named_with_the_options_that_shrink_it() -> None:
    with pytest.raises(
        ConfigError, match=r"^kv_cache_memory_fraction: .* for 44 blocks; .* needs 100; a run takes"
    ) as no:
        choose(950)
    assert "less with a lower max_num_tokens or max_batch_size" in str(no.value)
    with pytest.raises(ConfigError, match="there is room for 0 blocks"):
        choose(2000)


def test_without_a_run_only_the_fraction_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^kv_cache_memory_fraction: .* needs 1000$"):
        choose(0, max_model_len=16000)


def test_too_few_blocks_by_configuration_are_refused_by_their_own_name() -> None:
    with pytest.raises(ConfigError, match=r"^num_blocks: there is room for 99 blocks; .* needs 100$"):
        choose(1, num_blocks=99)
    assert choose(1, num_blocks=100) == 100


class Full:
    """Stands where a model does; its device has no memory for a cache."""

    def create_cache(self, num_blocks: int, block_size: int) -> None:
        raise torch.cuda.OutOfMemoryError("no memory")


@pytest.mark.parametrize(("options", "knob"), [({"num_blocks": 9}, "num_blocks"), ({}, "kv_cache_memory_fraction")])
def test_blocks_for_which_there_is_no_memory_are_refused_by_name(options: dict[str, int], knob: str) -> None:
    config = Config(model="m", **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"^{knob}: 9 blocks do not fit beside the weights; lower it"):
        create_cache(Full(), config, 9)  # type: ignore[arg-type]
