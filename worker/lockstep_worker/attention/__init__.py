"""Attention over the paged cache.

Read `batch` (what a run computes), `protocol` (plan on the host, run on the device), `interface` (where the model calls
it), `choose` (which backend), then `sdpa` (the reference) and `paged` (GPUs), which plans with `work`.
"""
