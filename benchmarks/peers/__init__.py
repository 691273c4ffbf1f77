"""Decode steps of Lockstep, vLLM and transformers side by side on one GPU.

Read `run` first. Each engine loads in a process of its own, and all stay loaded: `run` gives them the same rounds in
turn, there and back (ABBA), so that clocks and heat favour nobody. `common` is what the engines' processes share;
`page` writes what came of it into docs/benchmarks.md, losses included.
"""
