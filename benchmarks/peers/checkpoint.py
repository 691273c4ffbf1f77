"""Write a model folder with random weights that every server can load from disk.

    python -m benchmarks.peers.checkpoint --shape 8b --out /dev/shm/8b

The weights are bfloat16, drawn on the GPU where there is one; norms are ones, as a network begins. Nothing is learned,
so what such a model says means nothing, and only times do. The tokenizer has a token for each id of the model, so that
a server turns every id into text as it would with a real one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep_worker.bench.offline.shapes import SHAPES

_WORD = "\u0120{}"
"""How byte-level vocabularies write a word with the space before it."""
_DIGITS = "etaoinshrdlucmfwypvbgkqjxz"
_TOKENIZER_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}


def write_checkpoint(shape: str, folder: Path, *, device: str | None = None, seed: int = 0) -> Path:
    """Write configuration, weights and tokenizer, unless the folder holds weights of this shape; returns the folder.

    Args:
        shape: a name in `SHAPES`.
        folder: made where it is missing.
        device: where the weights are drawn; by itself the GPU, or the CPU where there is none.
        seed: of the weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights, described = folder / "model.safetensors", folder / "config.json"
    config = json.dumps(SHAPES[shape], indent=1)
    if not (weights.exists() and described.exists() and described.read_text() == config):
        unfinished = weights.with_suffix(".part")
        save_file(_draw_weights(shape, device or _find_device(), seed), unfinished, metadata={"format": "pt"})
        unfinished.rename(weights)
        described.write_text(config)
    build_tokenizer(SHAPES[shape]["vocab_size"]).save(str(folder / "tokenizer.json"), pretty=False)
    context = SHAPES[shape]["max_position_embeddings"]
    (folder / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER_CONFIG | {"model_max_length": context}))
    return folder


def build_tokenizer(vocab_size: int) -> Tokenizer:
    """Build a byte-level tokenizer without merges: a token for each byte, then a made-up word for each further id."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(_WORD.format(_spell(i)) for i in range(vocab_size))]
    vocabulary = {token: number for number, token in enumerate(tokens[:vocab_size])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _spell(number: int) -> str:
    """Write a number in letters, none alike: three or four of them in a large vocabulary, as real words have."""
    word = ""
    while number or not word:
        number, digit = divmod(number, len(_DIGITS))
        word += _DIGITS[digit]
    return word


def _draw_weights(shape: str, device: str, seed: int) -> dict[str, torch.Tensor]:
    """Draw what transformers would store of such a network, a tensor at a time."""
    config = AutoConfig.for_model(**SHAPES[shape])
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tied = set(network.all_tied_weights_keys)
    generator = torch.Generator(device).manual_seed(seed)
    drawn = {}
    for name, like in network.state_dict().items():
        if name in tied:
            continue
        weight = torch.empty(like.shape, dtype=like.dtype, device=device)
        weight = weight.fill_(1) if like.ndim == 1 else weight.normal_(0, config.initializer_range, generator=generator)
        drawn[name] = weight.cpu()
    return drawn


def _find_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Write one folder."""
    parser = argparse.ArgumentParser(description="Write a model folder with random weights.")
    parser.add_argument("--shape", choices=tuple(SHAPES), required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    write_checkpoint(arguments.shape, arguments.out)


if __name__ == "__main__":
    main()
