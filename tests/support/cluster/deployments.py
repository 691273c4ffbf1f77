"""Builds ServingDeployments for tests and asks a cluster about them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from lockstep_operator.children.mpijob import MPIJOB
from lockstep_operator.clients.kube import Kube
from lockstep_operator.errors import NotFound
from lockstep_operator.kinds import DEPLOYMENTS, Object
from support.cluster.kubelet import Kubelet
from support.cluster.operator_process import wait_for

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MINIMAL: Object = yaml.safe_load((EXAMPLES / "minimal.yaml").read_text())
NAME = MINIMAL["metadata"]["name"]


def build_deployment(namespace: str = "default", **spec: Any) -> Object:
    """Build the example with other fields of its spec; nothing waits in it unless it is asked to."""
    item = copy.deepcopy(MINIMAL)
    item["metadata"]["namespace"] = namespace
    item["spec"] |= {"drainTimeoutSeconds": 0, "restartPolicy": {"backoffSeconds": 0}, **spec}
    return item


def build_two_roles(**fields: Any) -> list[Object]:
    """Build the example's role, which is scaled, and one of one group and another revision, or with these fields."""
    (role,) = copy.deepcopy(MINIMAL["spec"]["roles"])
    return [role, role | {"name": "second", "replicas": 1, "engine": {"maxBatchSize": 8}, **fields}]


class Live:
    """The example deployment in a namespace of a real cluster.

    Args:
        kube: an administrator's client.
        kubelet: makes its pods run.
        namespace: where it is.
    """

    def __init__(self, kube: Kube, kubelet: Kubelet, namespace: str) -> None:
        self.kube = kube
        self.kubelet = kubelet
        self.namespace = namespace

    def bring_up(self, **spec: Any) -> None:
        """Create it and wait until it is Ready."""
        self.kube.create(DEPLOYMENTS, build_deployment(self.namespace, **spec))
        self.wait_ready()

    def wait_ready(self) -> None:
        """Run its pods until it says Ready of its newest generation."""
        wait_for("the deployment is Ready", lambda: self.kubelet.run_pods() and self.is_ready())

    def read(self) -> Object:
        """Read it."""
        return self.kube.get(DEPLOYMENTS, self.namespace, NAME)

    def is_ready(self) -> bool:
        """Whether it is Ready of its newest generation."""
        item = self.read()
        ready = self.find_condition("Ready", item)
        return ready.get("status") == "True" and ready["observedGeneration"] == item["metadata"]["generation"]

    def find_condition(self, kind: str, item: Object | None = None) -> Object:
        """Find one of its conditions."""
        conditions = (item or self.read()).get("status", {}).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def wait_condition(self, kind: str, status: str, reason: str) -> Object:
        """Wait until a condition has a status and a reason; return it."""

        def ask() -> Object | None:
            condition = self.find_condition(kind)
            return condition if (condition.get("status"), condition.get("reason")) == (status, reason) else None

        return wait_for(f"{kind} is {status} because of {reason}", ask)

    def patch(self, **spec: Any) -> None:
        """Change its spec."""
        self.kube.patch(DEPLOYMENTS, self.namespace, NAME, {"spec": spec})

    def list_jobs(self) -> dict[str, Object]:
        """List its MPIJobs by UID."""
        return {job["metadata"]["uid"]: job for job in self.kube.list(MPIJOB.kind, self.namespace)}

    def remove(self) -> None:
        """Delete it if it is there, without a drain, and wait until it is gone."""
        try:
            self.patch(drainTimeoutSeconds=0)
            self.delete()
        except NotFound:
            return
        self.wait_gone()

    def wait_gone(self) -> None:
        """Wait until it is gone."""
        wait_for("the deployment is gone", lambda: self.kube.find(DEPLOYMENTS, self.namespace, NAME) is None)

    def delete(self) -> None:
        """Ask for its deletion."""
        path = DEPLOYMENTS.build_path(self.namespace, NAME)
        self.kube.call("DELETE", path, None, {"propagationPolicy": "Background"})  # as kubectl does
