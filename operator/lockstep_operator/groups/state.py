"""What is there, as one frozen picture: the deployment, its groups, their pods, its other children.

`observe` makes it; `plan` and `status` decide from it. It holds no client and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from lockstep_operator.api.spec import Spec
from lockstep_operator.api.status import GroupStatus, Status
from lockstep_operator.kinds import Kind, Object
from lockstep_operator.names import FINALIZER

Key = tuple[str, str]
"""A deployment's namespace and name."""
DEFAULT_DRAIN_TIMEOUT_S = 120
ACCEPT_LIMIT_S = 30
"""An MPIJob without its `Created` condition after so many seconds is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a pod's first container ended."""

    exit_code: int
    reason: str
    """The worker's own word if it left one, else Kubernetes' (`Error`, `OOMKilled`)."""
    rank: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of a group."""

    name: str
    uid: str
    is_launcher: bool
    index: int
    """Its number in the group: 0 is the launcher."""
    revision: str
    created: datetime
    phase: str = "Pending"
    ready: bool = False
    deleting: bool = False
    node: str | None = None
    ip: str | None = None
    reason: str = ""
    message: str = ""
    ending: Ending | None = None
    draining_since: datetime | None = None
    waiting: str = ""
    """Why it is not running yet, in Kubernetes' words."""

    @property
    def ended(self) -> bool:
        """Its containers have stopped for good."""
        return self.phase in {"Failed", "Succeeded"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """What a launcher says of its drain."""

    draining: bool
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One MPIJob and its pods."""

    name: str
    uid: str
    role: str
    index: int
    revision: str
    created: datetime
    num_workers: int
    slots: int
    accepted: bool = False
    """mpi-operator has taken it up (condition `Created`)."""
    outcome: str = ""
    """`Succeeded` or `Failed` once mpi-operator calls it finished."""
    outcome_message: str = ""
    deleting_since: datetime | None = None
    pods: tuple[Pod, ...] = ()
    drain: Drain | None = None

    @property
    def launcher(self) -> Pod | None:
        """The launcher pod; the newest if there are several."""
        launchers = [pod for pod in self.pods if pod.is_launcher]
        return max(launchers, key=lambda pod: (not pod.deleting, pod.created)) if launchers else None

    @property
    def is_draining(self) -> bool:
        """Its traffic was ended; there is no way back."""
        return self.launcher is not None and self.launcher.draining_since is not None

    @property
    def workers(self) -> tuple[Pod, ...]:
        """The worker pods."""
        return tuple(pod for pod in self.pods if not pod.is_launcher)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A pod that outlives its MPIJob, or whose MPIJob cannot be seen."""

    name: str
    group: str
    role: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """All that one reconciliation looks at."""

    namespace: str
    name: str
    uid: str
    generation: int
    deleting: bool
    finalizers: tuple[str, ...]
    resource_version: str
    spec: Spec | None
    problems: tuple[str, ...]
    """Why `spec` is None."""
    before: Status
    """The status as it was last written."""
    unserved: tuple[Kind, ...] = ()
    """Kinds of children whose API is not served now: there may be objects of them, but nobody can see any."""
    groups: tuple[Group, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    """Pods whose MPIJob is gone; while MPIJobs are not served, all pods."""
    children: Mapping[Kind, tuple[Object, ...]] = field(default_factory=dict)
    """The standing children of each kind that has any; groups are read from MPIJobs and pods instead."""

    def is_served(self, kind: Kind) -> bool:
        """Whether objects of a kind can be seen and made."""
        return kind not in self.unserved

    @property
    def has_finalizer(self) -> bool:
        """Ours is there."""
        return FINALIZER in self.finalizers

    @property
    def drain_timeout_s(self) -> int:
        """How long a group may finish its requests, in seconds."""
        return self.spec.drain_timeout_seconds if self.spec else DEFAULT_DRAIN_TIMEOUT_S

    def find_history(self, role: str, index: int) -> GroupStatus | None:
        """Find what the status remembers of a place; of several entries the one with restarts wins."""
        entries = [entry for entry in self.before.groups if (entry.role, entry.index) == (role, index)]
        return max(entries, key=lambda entry: (entry.restarts, entry.uid != "")) if entries else None
