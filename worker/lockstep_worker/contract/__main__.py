"""`python -m lockstep_worker.contract` prints `docs/options.md`."""

from lockstep_worker.contract.page import document

print(document(), end="")
