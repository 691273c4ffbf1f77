"""`lockstep-operator run` with more kinds of children than it has; the arguments name them.

Run it with the tests' folder on the path: `python -m support.cluster.more_operator ConfigMap Lease`.
"""

from __future__ import annotations

import os
import sys

from lockstep_operator.__main__ import run_operator
from lockstep_operator.children.registry import CHILDREN
from lockstep_operator.settings import read_settings
from support.cluster.more_children import GANG, LEASE, SETTINGS

if __name__ == "__main__":
    more = {child.kind.name: child for child in (SETTINGS, LEASE, GANG)}
    run_operator(read_settings(os.environ), (*CHILDREN, *(more[name] for name in sys.argv[1:])))
