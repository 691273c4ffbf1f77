"""The room for kernels, empty so far: Triton only, each beside its torch reference, with a test that holds them equal.

A kernel knows tensors and nothing of models, requests or slots; `attention` and `model` choose it.
"""
