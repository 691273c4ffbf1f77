"""What the log says while a model loads, and what is found wrong with its files before."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from accelerate import init_empty_weights  # type: ignore[import-untyped]
from transformers.utils import logging as hf_logging

from lockstep_worker.errors import ConfigError
from lockstep_worker.model import progress
from lockstep_worker.model.loader import load_model
from lockstep_worker.model.progress import Progress, show_bytes
from lockstep_worker.model.shards import list_shards, load_shards
from lockstep_worker.model.split.tensor import apply_plan
from lockstep_worker.parallel.topology import Axis
from support.data.tiny_models import CONFIGS, save_tiny_model

CPU = torch.device("cpu")
LINE = re.compile(r"weights: (\S+) (\S+) of (\S+) (\S+) \((\d+) %\) after \d+ s")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _listen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="lockstep_worker")


@pytest.fixture
def _tell_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LEAST_S", 0)
    monkeypatch.setattr(progress, "_SHARE", 0)


def percents(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [int(found[5]) for found in map(LINE.fullmatch, caplog.messages) if found]


def run(*, amounts: int, seconds_each: float) -> None:
    clock = Clock()
    load = Progress("weights", amounts, lambda count: f"{count} tensors", clock=clock)
    for _ in range(amounts):
        clock.now += seconds_each
        load.add(1)


@pytest.mark.parametrize(
    ("amounts", "seconds_each", "expected"),
    [
        pytest.param(400, 0.01, [], id="a fast one says nothing"),
        pytest.param(400, 0.05, [25, 50, 75], id="many parts come as a line every five seconds"),
        pytest.param(400, 0.5, list(range(10, 100, 10)), id="a slow one comes by tenths"),
        pytest.param(8, 6, [12, 25, 37, 50, 62, 75, 87], id="few large parts come one by one"),
        pytest.param(50, 10, list(range(6, 100, 6)), id="a very slow one comes every half minute"),
    ],
)
def test_lines_come_neither_too_often_nor_too_seldom(
    caplog: pytest.LogCaptureFixture, amounts: int, seconds_each: float, expected: list[int]
) -> None:
    run(amounts=amounts, seconds_each=seconds_each)
    assert percents(caplog) == expected


def test_a_line_says_how_much_of_what_and_since_when(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    load = Progress("weights", 140_000_000_000, show_bytes, clock=clock)
    clock.now += 31.4
    load.add(28_400_000_000)
    assert caplog.messages == ["weights: 28.4 GB of 140.0 GB (20 %) after 31 s"]
    assert [show_bytes(count) for count in (3_400_000, 12_345, 0)] == ["3.4 MB", "12.3 kB", "0.0 kB"]


@pytest.mark.usefixtures("_tell_all")
def test_a_whole_load_is_told_by_tensors_and_takes_its_hook_back(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = save_tiny_model("llama", tmp_path)
    size = show_bytes((path / "model.safetensors").stat().st_size)
    load_model(str(path), device=CPU)
    assert caplog.messages[0] == f"weights: {size} in 1 file"
    lines = [found for found in map(LINE.fullmatch, caplog.messages) if found and found[2] == "tensors"]
    number = len(hf.AutoModelForCausalLM.from_pretrained(path).state_dict())
    assert [(int(line[1]), line[2], line[3]) for line in lines] == [
        (done, "tensors", str(number)) for done in range(1, number)
    ]
    assert hf_logging.set_tqdm_hook(None) is None


@pytest.mark.usefixtures("_tell_all")
@pytest.mark.parametrize(("family", "tied"), [("llama", ()), ("qwen3", ("lm_head.weight",))])
def test_a_part_is_told_by_the_bytes_that_the_rank_reads(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, family: str, tied: tuple[str, ...]
) -> None:
    path = save_tiny_model(family, tmp_path)
    network = load_part(path, family, Axis(2, 1))
    lines = [found for found in map(LINE.fullmatch, caplog.messages) if found]
    parts = [one.nbytes for name, one in network.state_dict().items() if name not in tied]
    assert {f"{line[3]} {line[4]}" for line in lines} == {show_bytes(sum(parts))}
    assert [int(line[5]) for line in lines] == sorted(int(line[5]) for line in lines)
    assert len(lines) == len(parts) - 1


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_loaded_model_needs_its_files_no_more(tmp_path: Path, is_whole: bool) -> None:
    """Views of a mapped file would show the change here, and end the rank with SIGBUS when the file is cut."""
    path = save_tiny_model("qwen3", tmp_path)
    network = load_model(str(path), device=CPU)._network if is_whole else load_part(path, "qwen3", Axis(2, 0))
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    with (path / "model.safetensors").open("r+b") as file:
        file.write(b"\xff" * (path / "model.safetensors").stat().st_size)
    for name, weight in network.state_dict().items():
        assert torch.equal(weight, before[name]), name
    assert network.lm_head.weight.untyped_storage().data_ptr() == (
        network.model.embed_tokens.weight.untyped_storage().data_ptr()
    )


def test_files_that_the_index_names_and_the_folder_lacks_are_found_before_the_load(tmp_path: Path) -> None:
    path = save_sharded(tmp_path)
    shards = list_shards(path)
    assert [shard.suffix for shard in shards] == [".safetensors"] * len(shards)
    assert len(shards) > 2
    for shard in shards[1:3]:
        shard.unlink()
    with pytest.raises(ConfigError, match=rf"lacks 2 of its {len(shards)} files of weights: {shards[1].name}"):
        load_model(str(path), device=CPU)


@pytest.mark.parametrize("content", ["version https://git-lfs", json.dumps({"weight_map": ["a"]}), "{}"])
def test_an_index_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    path = save_sharded(tmp_path)
    (path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ConfigError, match=r"model: \S+/model.safetensors.index.json is no index of a checkpoint: "):
        load_model(str(path), device=CPU)


def load_part(path: Path, family: str, axis: Axis) -> Any:
    with init_empty_weights(include_buffers=False):
        network = hf.AutoModelForCausalLM.from_config(CONFIGS[family]())
    load_shards(network, list_shards(path), apply_plan(network, axis), CPU)
    return network


def save_sharded(folder: Path) -> Path:
    hf.AutoModelForCausalLM.from_config(CONFIGS["llama"]()).save_pretrained(folder, max_shard_size="20KB")
    return folder
