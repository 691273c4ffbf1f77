"""The model and its KV cache: packed tokens in, logits out.

Read `forward` (a loaded model, and which of its forwards runs), then how it comes about: `loader`, `support` (what is
refused), `probe` (what its layers ask of attention), `shards` and `split` (one rank's part of the weights), `progress`.
`dense` is the fast path: this engine's own kernels over the weights of the networks that it knows.
"""
