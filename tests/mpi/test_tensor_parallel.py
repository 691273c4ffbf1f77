"""Ranks that share a model's weights give what one rank gives; real mpirun, real gloo."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lockstep_worker.model.loader import load_model
from support.data import recall_model
from support.data.tiny_models import save_tiny_model
from support.ranks import tp_ranks
from support.ranks.mpirun import mpirun

pytestmark = pytest.mark.mpi

FAMILIES = ["llama", "llama3-rope", "qwen3", "mistral-window", "gpt_oss", "gemma2", "phi3", "olmo2", "granite"]
PROMPTS = [[5, 6, 7, 8, 90, 41, 33], [3], [*range(20, 40)], [*range(10, 19)]]

Job = dict[str, Any]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    found = {family: save_tiny_model(family, base) for family in [*FAMILIES, "qwen3_moe"]}
    found["recall"] = recall_model.PATH
    found["sharded"] = _in_two_files(found["llama"], base / "sharded")
    return found


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def size(request: pytest.FixtureRequest) -> int:
    """How many ranks; the models have two KV heads, so that four ranks hold each of them twice."""
    return int(request.param)


@pytest.fixture(scope="module")
def ranks(folders: dict[str, Path], size: int) -> list[Job]:
    """What each rank got, by folder."""
    job = folders["llama"].parent / f"job-{size}"
    job.write_text(json.dumps({"models": [str(path) for path in folders.values()], "prompts": PROMPTS}))
    mpirun(size, "support.ranks.tp_ranks", str(job), timeout_s=400)
    return [json.loads(Path(f"{job}.{rank}").read_text()) for rank in range(size)]


@pytest.mark.parametrize("name", [*FAMILIES, "recall", "sharded"])
def test_all_ranks_give_what_one_gives(folders: dict[str, Path], ranks: list[Job], name: str) -> None:
    path = str(folders[name])
    first, *others = (rank[path] for rank in ranks)
    assert all(other == first for other in others), "ranks differ"
    alone = tp_ranks.observe(load_model(path, device=torch.device("cpu"), dtype="float32"), PROMPTS)
    torch.testing.assert_close(torch.tensor(first["logits"]), torch.tensor(alone["logits"]), atol=2e-3, rtol=1e-3)
    assert first["tokens"] == alone["tokens"]


@pytest.mark.parametrize("name", ["llama", "llama3-rope", "qwen3", "recall", "granite"])
def test_a_rank_holds_its_part_of_the_layers_and_of_the_cache(
    folders: dict[str, Path], ranks: list[Job], name: str, size: int
) -> None:
    path = str(folders[name])
    model = load_model(path, device=torch.device("cpu"), dtype="float32")
    embedding = model._network.get_input_embeddings().weight.numel()
    layers = sum(parameter.numel() for parameter in model._network.parameters()) - embedding
    assert ranks[0][path]["kv_heads"] == max(model.kv_heads_local // size, 1)
    assert ranks[0][path]["weights"] - embedding < (1 / size + 0.1) * layers + embedding / size


def test_a_model_whose_plan_is_not_served_is_refused_on_all_ranks(folders: dict[str, Path], ranks: list[Job]) -> None:
    for rank in ranks:
        assert "moe_tp_experts" in rank[str(folders["qwen3_moe"])]["refused"]


def _in_two_files(source: Path, target: Path) -> Path:
    """Write the same checkpoint as two files with an index, as large models come."""
    target.mkdir()
    (target / "config.json").write_text((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    names = sorted(tensors)
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, target / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    return target
