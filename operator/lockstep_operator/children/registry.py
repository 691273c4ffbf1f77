"""All kinds of children. A new kind is a module beside this one and a line here (and rights in the chart's roles)."""

from __future__ import annotations

from lockstep_operator.children.child import Child
from lockstep_operator.children.mpijob import MPIJOB
from lockstep_operator.children.service import SERVICE

CHILDREN: tuple[Child, ...] = (SERVICE, MPIJOB)
"""In the order in which standing children are made, and deleted with their deployment: traffic ends first."""
