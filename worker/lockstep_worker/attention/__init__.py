"""Attention over the paged cache.

Read `batch` (what a run computes), `protocol` (plan on the host, run on the device), `interface` (where the model calls
it), `choose` (which backend), then `sdpa` (the reference, on any device) and `paged` (GPUs), whose plan is in `work`
and whose kernels are in `kernels`. The fast path calls a backend's run itself, and in a replayed decode it may attend
by a kernel of its own.
"""
