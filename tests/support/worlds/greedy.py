"""A small greedy driver of `Model` and `BlockPool`: any mix of prompt chunks and single tokens in one packed call."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from lockstep_worker.attention.batch import HostBatch, PackedBatch
from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.model.forward import Model


@dataclass
class Sequence:
    tokens: list[int]
    num_prompt: int
    limit: int
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    done: bool = False

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.num_prompt :]


class GreedyDriver:
    """Runs sequences to their end; `chunk` bounds the prompt tokens that one sequence brings a step."""

    def __init__(self, model: Model, *, num_blocks: int = 400, block_size: int = 8, chunk: int = 1000) -> None:
        self.model = model
        self.pool = BlockPool(num_blocks, block_size)
        self.chunk = chunk
        self.hit_tokens = 0
        model.create_cache(num_blocks, block_size)

    def start(self, prompt: list[int], limit: int) -> Sequence:
        blocks = self.pool.match(prompt)
        self.hit_tokens += len(blocks) * self.pool.block_size
        return Sequence(list(prompt), len(prompt), limit, blocks, len(blocks) * self.pool.block_size)

    def step(self, sequences: list[Sequence]) -> None:
        """Compute one packed call of all sequences that are not done, and end those that are now."""
        running = [sequence for sequence in sequences if not sequence.done]
        counts = [min(len(one.tokens) - one.num_computed, self.chunk) for one in running]
        for sequence, count in zip(running, counts, strict=True):
            needed = -(-(sequence.num_computed + count) // self.pool.block_size)
            sequence.blocks += self.pool.allocate(needed - len(sequence.blocks))
        logits = self.model.forward(pack(running, counts, self.pool.block_size, self.model.device))
        drawn = iter(logits.argmax(-1).tolist())
        for sequence, count in zip(running, counts, strict=True):
            sequence.num_computed += count
            self.pool.commit(sequence.blocks, sequence.tokens, sequence.num_computed)
            if sequence.num_computed == len(sequence.tokens):
                self._append(sequence, next(drawn))
        self.pool.check()

    def run(self, prompts: list[list[int]], limit: int) -> list[list[int]]:
        """Generate for all prompts together; returns the generated ids, an end id included."""
        sequences = [self.start(prompt, limit) for prompt in prompts]
        while not all(sequence.done for sequence in sequences):
            self.step(sequences)
        return [sequence.generated for sequence in sequences]

    def _append(self, sequence: Sequence, token: int) -> None:
        sequence.tokens.append(token)
        if token in self.model.end_ids or len(sequence.generated) == sequence.limit:
            sequence.done = True
            self.pool.release(sequence.blocks)


def pack(sequences: list[Sequence], counts: list[int], block_size: int, device: torch.device) -> PackedBatch:
    """Pack the next `counts` tokens of each sequence."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts, rows = [0], []
    for sequence, count in zip(sequences, counts, strict=True):
        span = range(sequence.num_computed, sequence.num_computed + count)
        ids += [sequence.tokens[position] for position in span]
        positions += span
        slots += [sequence.blocks[position // block_size] * block_size + position % block_size for position in span]
        starts.append(len(ids))
        if span.stop == len(sequence.tokens):
            rows.append(len(ids) - 1)
    contexts = [sequence.num_computed + count for sequence, count in zip(sequences, counts, strict=True)]
    width = max(len(sequence.blocks) for sequence in sequences)
    tables = [sequence.blocks + [0] * (width - len(sequence.blocks)) for sequence in sequences]
    return PackedBatch(
        host=HostBatch(
            np.array(starts, dtype=np.int64), np.array(contexts, dtype=np.int32), max(counts), max(contexts)
        ),
        input_ids=torch.tensor(ids, dtype=torch.int64, device=device),
        positions=torch.tensor(positions, dtype=torch.int64, device=device),
        kv_cells=torch.tensor(slots, dtype=torch.int64, device=device),
        query_start=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
        block_tables=torch.tensor(tables, dtype=torch.int32, device=device),
        logit_rows=torch.tensor(rows, dtype=torch.int64, device=device),
    )
