"""The recall model, what to ask it, and what transformers itself answers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from models.recall import tasks

PATH = Path(tasks.__file__).parent
CPU = torch.device("cpu")


def load_recall() -> Model:
    return load_model(str(PATH), device=CPU, dtype="float32")


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(PATH, local_files_only=True)


def reference() -> Any:
    return AutoModelForCausalLM.from_pretrained(PATH, dtype=torch.float32, local_files_only=True).eval()


def encode_prompt(tokens: Any, conversation: tasks.Conversation) -> list[int]:
    """Token ids of a conversation without its last answer, as the chat template writes them."""
    ids: list[int] = tokens.apply_chat_template(
        conversation[:-1], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return ids


def conversations(seed: int, count: int) -> list[tasks.Conversation]:
    """Fresh prompts of all kinds, sizes at which the model is reliably right."""
    rng = random.Random(10_000 + seed)
    kinds = ["recall8", "recall16", "recall30", "recall30system", "copy16", "reverse8"]
    return [tasks.HELD_OUT[kinds[index % len(kinds)]](rng) for index in range(count)]


def prompts(seed: int, count: int) -> list[list[int]]:
    """Token ids of held-out questions."""
    tokens = tokenizer()
    return [encode_prompt(tokens, one) for one in conversations(seed, count)]


def generate(model: Any, prompt: list[int], limit: int) -> list[int]:
    """Greedy ids by transformers' own `generate`, an end id included."""
    output = model.generate(torch.tensor([prompt]), max_new_tokens=limit, do_sample=False)
    ids: list[int] = output[0, len(prompt) :].tolist()
    return ids
