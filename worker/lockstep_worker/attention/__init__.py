"""Attention over the paged cache. Read `protocol` first, then `interface` (where the model calls it), then `sdpa`."""
