"""The kernels of a decode step, where every row is one new token: few a layer, chained by `kernels.chain`.

A layer takes, for many rows: `tiles` (queries, keys and values), `attention`, `tiles` (output projection) and `rows`
(residual and the next norm), `tiles` (gate and up), `tiles` (down) and `rows`. For one row `vector` replaces tiles
and rows: five kernels a layer. `finish` chooses the token. The design and its measured gain over one kernel an
operation came from a prototype on an H200: 0.57 ms a step instead of 1.54 for a network of 0.6 billion parameters at
batch 1, 1.95 instead of 2.73 at batch 64.
"""
