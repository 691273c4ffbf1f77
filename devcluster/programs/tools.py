"""Everything outside this package that a cluster runs, found or installed, as one value."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import ToolError
from devcluster.programs.build import find_control_plane, find_mpi_operator
from devcluster.programs.clients import find_clients
from devcluster.programs.debian import SYSTEM_PATH, find_programs
from devcluster.progress import Progress


@dataclass(frozen=True)
class Tools:
    """Paths of every program by its name, and of the manifests of mpi-operator (CRD, RBAC)."""

    programs: Mapping[str, Path]
    mpi_manifests: Path

    def __getitem__(self, name: str) -> str:
        """The path of a program, for an argument list."""
        return str(self.programs[name])

    @property
    def path(self) -> str:
        """A PATH on which kubectl and helm of these versions come first."""
        clients = dict.fromkeys(str(self.programs[name].parent) for name in ("kubectl", "helm"))
        return ":".join([*clients, os.environ.get("PATH", ""), SYSTEM_PATH])


def ensure_tools(progress: Progress) -> Tools:
    """Finds, installs or builds all that a cluster needs; minutes the first time, a second later.

    Raises:
        ToolError: something cannot be had, or this is not root.
    """
    if os.geteuid() != 0:
        raise ToolError("devcluster needs root: it makes network namespaces")
    programs = find_programs(progress)
    programs.update(find_clients(progress))
    programs.update(find_control_plane(progress))
    programs["mpi-operator"], manifests = find_mpi_operator(progress)
    return Tools(programs, manifests)
