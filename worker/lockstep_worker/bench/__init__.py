"""Benchmarks of the worker and of its parts, run where they are used: `lockstep-worker bench NAME`.

Each measures one thing and returns one JSON object that names the machine. Read `command` first: which there are, and
their arguments. `update` times the two ways of a step's update, `exchange` counts and times what a step costs between
ranks, `idle` what a parked group costs, `streaming` what the frontend streams, and `serving` loads a whole server over
HTTP; `offline` runs the step loop by itself, for decode steps and the host's part of them, and for `lockstep-worker
profile`. They share `machine`, which describes the machine, `ranks`, which starts ranks, and `counting`, which wraps a
communicator.
"""

from __future__ import annotations

from lockstep_worker.errors import LockstepError


class BenchFailed(LockstepError):
    """A benchmark did not come to its end."""
