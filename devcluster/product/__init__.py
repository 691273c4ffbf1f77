"""Lockstep in a cluster, as a user has it: `lockstep` (install, apply, ask, measure) and `demo` (all of it once)."""
