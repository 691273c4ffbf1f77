"""A small model of a cluster: it does what plans ask for, and what mpi-operator and kubelets would do."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from lockstep_operator import names
from lockstep_operator.api.spec import Spec, parse_deployment
from lockstep_operator.api.status import Status
from lockstep_operator.children.child import Child
from lockstep_operator.children.mpijob import MPIJOB
from lockstep_operator.children.registry import CHILDREN
from lockstep_operator.children.service import SERVICE
from lockstep_operator.groups.state import Drain, Ending, Group, Leftover, Observed, Pod
from lockstep_operator.kinds import Kind, Object
from lockstep_operator.plan import actions
from lockstep_operator.plan.actions import Plan
from lockstep_operator.plan.plan import plan
from lockstep_operator.status.status import status
from support.cluster.deployments import MINIMAL, NAME, build_deployment

ROLE = MINIMAL["spec"]["roles"][0]["name"]
START = datetime(2026, 1, 1, tzinfo=UTC)


def build_spec(**spec: Any) -> Spec:
    """Parse the example with other fields."""
    return parse_deployment(build_deployment(**spec))


def list_leftovers(group: Group) -> tuple[Leftover, ...]:
    """List a group's pods as they look when its MPIJob cannot be seen."""
    return tuple(Leftover(name=pod.name, group=group.name, role=group.role, index=group.index) for pod in group.pods)


class World:
    """One deployment, its groups and its other children."""

    kinds: tuple[Child, ...] = CHILDREN
    """What the operator has in its registry."""

    def __init__(self, **spec: Any) -> None:
        self.raw = spec
        self.spec = build_spec(**spec)
        self.now = START
        self.generation = 1
        self.deleting = False
        self.finalizers: tuple[str, ...] = ()
        self.unserved: set[Kind] = set()
        self.gone = False
        self.groups: dict[str, Group] = {}
        self.orphans: tuple[Leftover, ...] = ()
        """Pods that run on without their MPIJob."""
        self.children: dict[Kind, dict[str, Object]] = {}
        """The standing children of each kind by name."""
        self.status = Status()
        self.writes: list[Any] = []
        self._uids = (f"uid-{number}" for number in itertools.count(1))

    @property
    def services(self) -> dict[str, Object]:
        """The Services by name."""
        return self.children.setdefault(SERVICE.kind, {})

    # --- what the operator does ---

    def observe(self) -> Observed:
        """Take the picture that `observe` would take."""
        can_see_groups = MPIJOB.kind not in self.unserved
        groups = tuple(sorted(self.groups.values(), key=lambda group: group.name))
        unseen = () if can_see_groups else groups
        return Observed(
            namespace="default",
            name=NAME,
            uid="deployment",
            generation=self.generation,
            deleting=self.deleting,
            finalizers=self.finalizers,
            resource_version="1",
            spec=self.spec,
            problems=(),
            before=self.status,
            unserved=tuple(self.unserved),
            groups=groups if can_see_groups else (),
            leftovers=(*self.orphans, *(entry for group in unseen for entry in list_leftovers(group))),
            children={
                kind: () if kind in self.unserved else tuple(items.values()) for kind, items in self.children.items()
            },
        )

    def plan(self) -> Plan:
        """Plan for now."""
        return plan(self.observe(), self.now, self.kinds)

    def reconcile(self, crash_after: int | None = None) -> int:
        """Do one pass, or die after so many actions; return the number of writes."""
        seen = self.observe()
        before = len(self.writes)
        planned = plan(seen, self.now, self.kinds)
        for number, action in enumerate(planned.actions):
            if number == crash_after:
                return len(self.writes) - before
            self.carry_out(action)
        after = status(seen, (), self.now, planned.missing)
        is_written = not planned.changes_deployment and after != self.status
        if is_written and (crash_after is None or crash_after > len(planned.actions)):
            self.status = after
            self.writes.append(after)
        return len(self.writes) - before

    def carry_out(self, action: actions.Action) -> None:
        """Do what one action asks for."""
        self.writes.append(action)
        if isinstance(action, (actions.CreateChild, actions.UpdateChild, actions.DeleteChild)):
            assert action.child.kind not in self.unserved, f"{action.child.kind.name}s are not served"
        match action:
            case actions.AddFinalizer():
                self.finalizers = (names.FINALIZER,)
            case actions.RemoveFinalizer():
                self.finalizers, self.gone = (), True
            case actions.CreateChild(child, manifest) if child is MPIJOB:
                self._create_group(manifest)
            case actions.DeleteChild(child, _, uid) if child is MPIJOB:
                self.update(uid, deleting_since=self.now)
            case actions.CreateChild(child, manifest) | actions.UpdateChild(child, manifest, _):
                metadata = manifest["metadata"] | {"uid": next(self._uids), "resourceVersion": "1"}
                self.children.setdefault(child.kind, {})[metadata["name"]] = manifest | {"metadata": metadata}
            case actions.DeleteChild(child, name, _):
                self.children[child.kind].pop(name, None)
            case actions.EndTraffic(group, launcher):
                self._update_pod(group.uid, launcher.uid, draining_since=self.now)
                self.update(group.uid, drain=Drain(draining=False, in_flight=1))
            case actions.StartDrain(group, _):
                self.update(group.uid, drain=Drain(draining=True, in_flight=0))

    def _create_group(self, manifest: dict[str, Any]) -> None:
        labels = manifest["metadata"]["labels"]
        name = manifest["metadata"]["name"]
        assert all(group.name != name for group in self.groups.values()), f"two groups are called {name}"
        uid = next(self._uids)
        self.groups[uid] = Group(
            name=name,
            uid=uid,
            role=labels[names.LABEL_ROLE],
            index=int(labels[names.LABEL_INDEX]),
            revision=labels[names.LABEL_REVISION],
            created=self.now,
            num_workers=manifest["spec"]["mpiReplicaSpecs"].get("Worker", {}).get("replicas", 0),
            slots=manifest["spec"]["slotsPerWorker"],
        )

    # --- what happens by itself ---

    def advance(self, seconds: float = 60) -> None:
        """Let time pass, and every group come further; pods without their MPIJob end."""
        self.now += timedelta(seconds=seconds)
        self.orphans = ()
        for group in list(self.groups.values()):
            self._advance_group(group)

    def _advance_group(self, group: Group) -> None:
        if group.deleting_since is not None:
            del self.groups[group.uid]
        elif not group.accepted:
            self.update(group.uid, accepted=True)
        elif len(group.workers) < group.num_workers:
            missing = {*range(1, group.num_workers + 1)} - {pod.index for pod in group.workers}
            self.update(group.uid, pods=(*group.pods, *(self._build_pod(group, index) for index in sorted(missing))))
        elif not all(pod.ready or pod.ended for pod in group.pods):
            pods = tuple(pod if pod.ended or pod.draining_since else self._run(pod) for pod in group.pods)
            self.update(group.uid, pods=pods)
        elif group.launcher is None:
            self.update(group.uid, pods=(*group.pods, self._build_pod(group, 0)))

    def _build_pod(self, group: Group, index: int) -> Pod:
        return Pod(
            name=f"{group.name}-{index}",
            uid=next(self._uids),
            is_launcher=index == 0,
            index=index,
            revision=group.revision,
            created=self.now,
        )

    def _run(self, pod: Pod) -> Pod:
        return replace(pod, phase="Running", ready=True, ip="10.0.0.1", node=f"node-{pod.index}")

    def settle(self, rounds: int = 80, seconds: float = 120) -> None:
        """Let things happen and reconcile until nothing is written any more."""
        quiet = 0
        for _ in range(rounds):
            self.advance(seconds)
            quiet = 0 if self.reconcile() else quiet + 1
            if quiet > 6 or self.gone:
                return
        raise AssertionError("it does not come to rest")

    def change(self, **spec: Any) -> None:
        """Change the spec, as a user does."""
        self.raw |= spec
        self.spec = build_spec(**self.raw)
        self.generation += 1

    # --- what goes wrong ---

    def lose_worker(self, group: Group, index: int = 1) -> None:
        """A worker pod vanishes; mpi-operator makes another one when time goes on."""
        self.update(group.uid, pods=tuple(pod for pod in group.pods if pod.index != index))

    def end_pod(self, group: Group, index: int = 0, exit_code: int = 1, reason: str = "") -> None:
        """A pod's container ends."""
        for pod in group.pods:
            if pod.index == index:
                ending = Ending(exit_code=exit_code, reason=reason)
                phase = "Failed" if exit_code else "Succeeded"
                self._update_pod(group.uid, pod.uid, phase=phase, ready=False, ending=ending)

    def orphan(self, group: Group) -> None:
        """A group's MPIJob is deleted in such a way that its pods run on."""
        del self.groups[group.uid]
        self.orphans += list_leftovers(group)

    def find_group(self, index: int = 0, role: str = ROLE) -> Group:
        """Find the living group of a place."""
        return next(group for group in self.list_living(role) if group.index == index)

    def list_living(self, role: str = ROLE) -> list[Group]:
        """List a role's groups that are not being deleted."""
        return [group for group in self.groups.values() if group.role == role and not group.deleting_since]

    def update(self, uid: str, **changes: Any) -> None:
        """Change a group, if it is still there."""
        if uid in self.groups:
            self.groups[uid] = replace(self.groups[uid], **changes)

    def _update_pod(self, uid: str, pod_uid: str, **changes: Any) -> None:
        group = self.groups.get(uid)
        if group is not None:
            pods = tuple(replace(pod, **changes) if pod.uid == pod_uid else pod for pod in group.pods)
            self.update(uid, pods=pods)
