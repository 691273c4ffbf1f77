"""Benchmarks of single parts of the worker, run where they are used: `lockstep-worker bench NAME`.

`update` times the two ways of a step's update, `exchange` counts and times what a step costs between ranks, `serve`
loads a whole server over HTTP. Each returns one JSON object that names the machine; `machine` describes it, `counting`
wraps a communicator, and `serve_*` are the client, the stub that it is held against, and the formulas.
"""
