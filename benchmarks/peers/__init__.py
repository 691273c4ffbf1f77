"""Lockstep, vLLM and transformers side by side on one GPU: decode steps without HTTP, and servers over it.

Read `run` first, for decode steps. Each engine loads in a process of its own, and all stay loaded: `run` gives them the
same rounds in turn, there and back (ABBA), so that clocks and heat favour nobody. `common` is what the engines'
processes share.
Then `http`, for servers: `checkpoint` writes the model that they load, `servers` starts them, `workloads` says what
clients ask, `load` are the clients, `figures` what their stamps mean.
`page` writes what came of both into docs/benchmarks.md, losses included; `http_page` is its part about servers.
"""
