"""`python -m lockstep_worker.metrics` prints `docs/metrics.md`."""

from lockstep_worker.metrics.page import document

print(document(), end="")
