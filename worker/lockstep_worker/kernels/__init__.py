"""The kernels: Triton only, each beside its torch reference, with a test that holds the two equal.

A kernel knows tensors and nothing of models or requests; `attention`, `model`, `sampling` and `runner` choose it.
A file has what the GPU runs, the function that runs it, and the reference. Read them in a step's order:

- `gather`: rows of slots become the tokens, positions and blocks of a decode.
- `norm`, `rope`, `activation`: what stands between the large multiplications of any batch.
- `paged`: attention over the paged cache; `paged_tiling` says how it is cut, `paged_tile` and `paged_join` are its
  parts, `paged_write` writes the cache, `paged_reference` is what it is held to.
- `decode`: a step of decodes in few kernels, which overlap by `chain`.
- `draw`, `close`: from logits to tokens, and from tokens to rows that are longer or have ended.

How to add one stands in docs/development.md.
"""
