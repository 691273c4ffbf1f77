"""A loaded model with its KV cache: packed tokens in, logits out.

Knows nothing of requests, slots or sampling. Nothing here waits for the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep_worker.attention.batch import PackedBatch
from lockstep_worker.attention.choose import choose_backend
from lockstep_worker.attention.protocol import AttentionBackend, AttentionShape
from lockstep_worker.cache.tensors import KVCache
from lockstep_worker.kernels.draw import Candidates, DrawInput
from lockstep_worker.model.dense.decode import DecodeStep, serves
from lockstep_worker.model.dense.decode_input import StepInput
from lockstep_worker.model.dense.forward import DenseForward
from lockstep_worker.model.dense.weights import DenseWeights


class Model:
    """One rank's part of a model.

    Args:
        network: the transformers causal language model, in evaluation mode, with our attention.
        shape: what its layers ask of attention.
        end_ids: the ids that end a text, from the model's configuration.
        device: where the weights are.
        dense: the network's weights as the fast path takes them; None runs transformers' own forward.
        batch_invariant: compute each token bit for bit the same in any batch; needs `dense`.
    """

    def __init__(
        self,
        network: Any,
        *,
        shape: AttentionShape,
        end_ids: tuple[int, ...],
        device: torch.device,
        dense: DenseWeights | None = None,
        batch_invariant: bool = False,
    ) -> None:
        assert dense is not None or not batch_invariant, "make_model refuses it"
        text = network.config.get_text_config(decoder=True)
        self.config: Any = network.config
        self.vocab_size = int(text.vocab_size)
        self.max_model_len = int(text.max_position_embeddings)
        self.end_ids = end_ids
        self.num_layers = shape.num_layers
        self.kv_heads_local = shape.kv_heads
        self.head_dim = shape.head_dim
        self.dtype: torch.dtype = network.dtype
        self.device = device
        self._network = network
        self._shape = shape
        self._weights = dense
        self._batch_invariant = batch_invariant
        self._dense: DenseForward | None = None
        self._decode: DecodeStep | None = None
        self._kv: KVCache | None = None
        self._attention: AttentionBackend | None = None

    @property
    def spare_block(self) -> int:
        """The cache's block that no request ever gets; see `KVCache`."""
        assert self._kv is not None, "create_cache comes before"
        return self._kv.spare_block

    @property
    def path(self) -> str:
        """Whose forward runs: `fast` and the batch-invariant `invariant` are our own, `generic` is transformers'."""
        if self._batch_invariant:
            return "invariant"
        return "generic" if self._weights is None else "fast"

    @property
    def attention_name(self) -> str:
        """The attention backend, in one word."""
        assert self._attention is not None, "create_cache comes before"
        return self._attention.name

    @property
    def is_replayable(self) -> bool:
        """Whether a decode may be captured as a CUDA graph: on a GPU, with an attention that is made for it."""
        assert self._attention is not None, "create_cache comes before"
        return self.device.type == "cuda" and self._attention.is_replayable

    @property
    def block_size(self) -> int:
        """Tokens of a block of the cache."""
        assert self._kv is not None, "create_cache comes before"
        return self._kv.block_size

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Compute the bytes of one block, keys and values of all layers of this rank."""
        return 2 * self.num_layers * block_size * self.kv_heads_local * self.head_dim * self.dtype.itemsize

    def create_cache(self, num_blocks: int, block_size: int) -> None:
        """Allocate the KV cache; an earlier one is given back.

        Raises:
            ConfigError: no batch-invariant attention serves the model, where it has to be.
        """
        self.drop_cache()  # the earlier cache goes before the new one comes
        self._kv = KVCache(
            num_layers=self.num_layers,
            num_blocks=num_blocks,
            block_size=block_size,
            kv_heads=self.kv_heads_local,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=self.device,
        )
        invariant = self._batch_invariant
        self._attention = choose_backend(self._kv, self._shape, batch_invariant=invariant)
        if self._weights is not None:
            self._dense = DenseForward(self._weights, self._kv, batch_invariant=invariant)

    def drop_cache(self) -> None:
        """Give back the KV cache and all that lives as long as it."""
        self._kv = self._attention = self._dense = self._decode = None

    def prepare_decodes(self, max_rows: int) -> None:
        """Make ready what decodes of up to so many rows need beside the cache; the address of none of it changes."""
        assert self._kv is not None, "create_cache comes before"
        if self._batch_invariant:
            return  # all batches take one path
        if self._weights is not None and serves(self._weights):
            self._decode = DecodeStep(self._weights, self._kv, max_rows, pdl=self.device.type == "cuda")

    @property
    def finds_best(self) -> bool:
        """Whether `decode_best` may be called: the forward of a decode can end with the best of the logits."""
        return self._decode is not None

    @torch.inference_mode()
    def decode(self, batch: PackedBatch) -> Tensor:
        """Compute a forward where each sequence brings its newest token and all logits are wanted; else as `forward`.

        The numbers are those of `forward` but for rounding: other kernels may compute them.
        """
        return self.forward(batch) if self._decode is None else self._decode.logits(_step(batch))

    @torch.inference_mode()
    def decode_best(self, batch: PackedBatch, draw: DrawInput | None) -> Candidates:
        """As `decode`, but find only the best entry of each of B tiles of the vocabulary.

        Args:
            batch: on this model's device.
            draw: what the rows' draws depend on; None takes the arg-max.

        Returns:
            [n, B]; the next decode writes them again.
        """
        assert self._decode is not None, "finds_best says whether it can"
        return self._decode.best(_step(batch), draw)

    @torch.inference_mode()
    def forward(self, batch: PackedBatch) -> Tensor:
        """Compute one forward: write the batch's keys and values to the cache and return the wanted logits.

        Args:
            batch: on this model's device.

        Returns:
            float32 [n, vocabulary], on the device, the same on every rank of a tensor-parallel group.
        """
        assert self._attention is not None, "create_cache comes before forward"
        if self._dense is not None:
            return self._dense(batch, self._attention.prepare(batch))
        output = self._network(
            input_ids=batch.input_ids[None],
            position_ids=batch.positions[None],
            use_cache=False,
            logits_to_keep=batch.logit_rows,
            lockstep_run=self._attention.prepare(batch),
        )
        logits: Tensor = output.logits[0]
        return logits.float()


def _step(batch: PackedBatch) -> StepInput:
    return StepInput(batch.input_ids, batch.positions, batch.block_tables)
