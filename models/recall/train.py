"""Train the recall model: a tiny Qwen3-shaped chat model for tests and demos, on a CPU.

    python -m models.recall.train OUT_DIR [--steps 2400] [--seed 0]

The curriculum and the learning rate follow the step count, never the clock: the same arguments on the same machine give
the same files, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning OpenMP threads are ten times slower on busy cores

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, rms_norm
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from models.recall.tasks import HELD_OUT, LETTERS, SIZE_LIMITS, copy, endless_conversation, recall, reverse

VOCAB_SIZE = 448
CHAT_TEMPLATE = (  # newlines stand inside {{ }}: '-' in a block tag would strip them
    "{%- for m in messages -%}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{%- if m['content'] is string -%}{{ m['content'] }}{%- elif m['content'] -%}"
    "{%- for p in m['content'] -%}{%- if p['type'] == 'text' -%}{{ p['text'] }}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
IGNORE = -100
"""Label of a token that is not learnt; cross entropy knows it."""

Encode = Callable[[str], list[int]]


# ---- tokenizer -------------------------------------------------------------------------------------------------------
def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE that encodes any text.

    Merges are learnt only inside a few words, in "k=" and in two-digit numbers; the Split keeps every other character
    apart, so that a random string of letters is one token a letter.
    """
    words = ["COPY", "REVERSE", "system", "user", "assistant"]
    split = Regex(r"\b(?:" + "|".join(words) + r")\b|[A-Za-z]=|\d\d|[\s\S]")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(split, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    pairs = [letter + "=" for letter in LETTERS] + [f"{number:02d}" for number in range(100)]
    tokenizer.train_from_iterator([text for text in words + pairs for _ in range(50)], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def encode_message(message: dict[str, str], encode: Encode) -> tuple[list[int], list[int]]:
    """Return the ids before a message's content and those from it on."""
    head = encode(f"<|im_start|>{message['role']}\n")
    return head, encode(message["content"]) + encode("<|im_end|>") + encode("\n")


def check_template(tokenizer: PreTrainedTokenizerFast, encode: Encode) -> None:
    """Assert that the chat template gives the very tokens that training sees."""
    rng = random.Random(1)
    for messages in (recall(rng, 9, 3, 2, in_system=True), recall(rng, 9, 3, 2), copy(rng, 9), reverse(rng, 9)):
        want = [one for message in messages for part in encode_message(message, encode) for one in part]
        assert tokenizer(tokenizer.apply_chat_template(messages, tokenize=False))["input_ids"] == want


# ---- batches ---------------------------------------------------------------------------------------------------------
def make_batch(
    rng: random.Random, encode: Encode, levels: list[float], rows: int, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Make ids, labels and the task of each label, each int64 [rows, length]."""
    limits = {task: round(low + (high - low) * levels[task]) for task, (low, high) in SIZE_LIMITS.items()}
    made = []
    for _ in range(rows):
        row: list[tuple[int, int, int]] = []
        for task, messages in endless_conversation(rng, limits):
            for message in messages:
                head, rest = encode_message(message, encode)
                row += [(one, IGNORE, -1) for one in head]
                learnt = message["role"] == "assistant" and task is not None
                labelled = (
                    [(one, one, task) for one in rest[:-1]] if learnt else [(one, IGNORE, -1) for one in rest[:-1]]
                )
                row += [*labelled, (rest[-1], IGNORE, -1)]
            if len(row) >= length:
                break
        made.append(row[:length])
    ids, labels, tasks = torch.tensor(made).unbind(-1)
    return ids, labels, tasks


def row_length(rng: random.Random, levels: list[float]) -> int:
    """Choose how many tokens a row has: more as the curriculum rises."""
    lowest = min(levels)
    if lowest < 1:
        return 64 if lowest < 0.1 else 128 if lowest < 0.35 else 256
    return rng.choice([256, 512])


# ---- training --------------------------------------------------------------------------------------------------------
class Trainer:
    """The model, its optimizers and the curriculum.

    Recall needs "which token stood before me" in layer 1 before any later layer can match keys; on its own that takes
    thousands of steps. A probe that must name the previous token from layer 1's output (training only, not saved)
    brings it forward.
    """

    def __init__(self, config: Qwen3Config, rate: float) -> None:
        self.model = Qwen3ForCausalLM(config).train()
        self.probe = torch.nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.levels = [0.0] * 3
        self.accuracy = [0.0] * 3
        self._rate = rate
        named = list(self.model.named_parameters())
        matrices = [value for name, value in named if value.ndim == 2 and "embed" not in name]
        others = [value for name, value in named if value.ndim != 2 or "embed" in name]
        self._optimizers = [
            torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw", ns_steps=4),
            torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
            torch.optim.AdamW(self.probe.parameters(), lr=rate),
        ]

    def step(self, ids: Tensor, labels: Tensor, tasks: Tensor, step: int, steps: int) -> float:
        """Learn from one batch; returns its loss."""
        self._set_rate(step, steps)
        with torch.autocast("cpu", torch.bfloat16):
            output = self.model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
            keep = labels[:, 1:] != IGNORE
            logits = self.model.lm_head(output.last_hidden_state[:, :-1][keep])
        target = labels[:, 1:][keep]
        loss = cross_entropy(logits.float(), target)
        total = loss + 0.3 * self._probe_loss(output.hidden_states[1], ids) if step < 0.6 * steps else loss
        torch.autograd.backward(total)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._raise_levels(logits.argmax(-1) == target, tasks[:, 1:][keep])
        return loss.item()

    def _set_rate(self, step: int, steps: int) -> None:
        """Warm up for 100 steps, stay, and fall linearly from 60 % of the run on."""
        done = step / steps
        rate = self._rate * min(1, (step + 1) / 100) * (1 if done < 0.6 else max(0.02, (1 - done) / 0.4))
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def _probe_loss(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Loss of naming every second token's predecessor."""
        seen = rms_norm(hidden[:, 1:][:, ::2].float(), hidden.shape[-1:])
        logits = linear(self.probe(seen), self.model.model.embed_tokens.weight)
        return cross_entropy(logits.flatten(0, 1), ids[:, :-1][:, ::2].flatten())

    def _raise_levels(self, right: Tensor, tasks: Tensor) -> None:
        """Make a task a little harder while 93 % of its tokens are right."""
        for task in SIZE_LIMITS:
            of_task = tasks == task
            if of_task.any():
                self.accuracy[task] = 0.9 * self.accuracy[task] + 0.1 * right[of_task].float().mean().item()
            if self.accuracy[task] > 0.93:
                self.levels[task] = min(1.0, self.levels[task] + 0.01)


@torch.no_grad()
def measure(model: Any, tokenizer: PreTrainedTokenizerFast, seed: int, prompts: int) -> dict[str, float]:
    """Exact match of greedy answers on fresh prompts of each held-out set."""
    rng = random.Random(seed)
    tokenizer.padding_side = "left"
    result = {}
    for name, make in HELD_OUT.items():
        conversations = [make(rng) for _ in range(prompts)]
        texts = [
            tokenizer.apply_chat_template(one[:-1], tokenize=False, add_generation_prompt=True) for one in conversations
        ]
        inputs = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
        output = model.eval().generate(**inputs, max_new_tokens=64, do_sample=False)
        answers = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        right = [answer == one[-1]["content"] for answer, one in zip(answers, conversations, strict=True)]
        result[name] = sum(right) / prompts
    return result


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train the recall model.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens a step")
    parser.add_argument("--threads", type=int, default=2, help="another number gives other weights")
    parser.add_argument("--measure", type=int, default=200, help="prompts of each held-out set; 0 measures nothing")
    options = parser.parse_args(argv)
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    tokenizer = build_tokenizer()

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    check_template(tokenizer, encode)
    trainer = Trainer(build_config(tokenizer, options.layers), rate=4e-3)
    rng = random.Random(options.seed)
    for step in range(options.steps):
        length = row_length(rng, trainer.levels)
        batch = make_batch(rng, encode, trainer.levels, options.tokens // length, length)
        loss = trainer.step(*batch, step, options.steps)
        if (step + 1) % 50 == 0 or step < 3:
            at = " ".join(
                f"{seen:.3f}@{level:.2f}" for seen, level in zip(trainer.accuracy, trainer.levels, strict=True)
            )
            print(f"step {step + 1} loss {loss:.4f} recall, copy, reverse {at} length {length}", flush=True)
    trainer.model.generation_config.do_sample = False
    trainer.model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    if options.measure:
        print(json.dumps(measure(trainer.model, tokenizer, 10_000 + options.seed, options.measure)), flush=True)


def build_config(tokenizer: PreTrainedTokenizerFast, layers: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        rope_theta=10000.0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )


if __name__ == "__main__":
    main()
