"""Plays the kubelet where a cluster has no nodes: writes the status of pods that the real mpi-operator made."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

from lockstep_operator.api.status import format_time
from lockstep_operator.clients.kube import MERGE_PATCH, Kube
from lockstep_operator.errors import NotFound
from lockstep_operator.kinds import PODS, Object


class Kubelet:
    """Writes pods' statuses in one namespace.

    Args:
        kube: an administrator's client.
        namespace: whose pods.
    """

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace

    def list_pods(self, job_role: str | None = None, group: str | None = None) -> list[Object]:
        """List pods of groups that are not being deleted."""
        selector = "training.kubeflow.org/job-role" + (f"={job_role}" if job_role else "")
        selector += f",serving.lockstep.dev/group={group}" if group else ""
        pods = self._kube.list(PODS, self._namespace, selector)
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def run_pods(self) -> int:
        """Make every pod that is still pending Running and Ready; return how many pods are Ready."""
        pods = self.list_pods()
        for pod in pods:
            if pod["status"].get("phase") == "Pending":
                self.write(pod, _running(pod))
        return sum(_is_ready(pod) for pod in self.list_pods())

    def set_ready(self, pod: Object, ready: bool) -> None:
        """Turn a running pod's readiness."""
        self.write(pod, _running(pod, ready))

    def end(self, pod: Object, exit_code: int, message: dict[str, Any] | str = "") -> None:
        """End a pod's container."""
        text = message if isinstance(message, str) else json.dumps(message)
        now = format_time(datetime.now(UTC))
        ended = {
            "exitCode": exit_code,
            "reason": "Error" if exit_code else "Completed",
            "message": text,
            "finishedAt": now,
        }
        status = _running(pod, ready=False)
        status["phase"] = "Failed" if exit_code else "Succeeded"
        status["containerStatuses"][0] |= {"state": {"terminated": ended}, "ready": False, "started": False}
        self.write(pod, status)

    def write(self, pod: Object, status: Object) -> None:
        """Patch a pod's status; one that is gone by now is left alone."""
        path = PODS.build_path(self._namespace, pod["metadata"]["name"], "status")
        with contextlib.suppress(NotFound):
            self._kube.call("PATCH", path, None, {"status": status}, MERGE_PATCH)


def _running(pod: Object, ready: bool = True) -> Object:
    container = pod["spec"]["containers"][0]
    now = format_time(datetime.now(UTC))
    word = "True" if ready else "False"
    return {
        "phase": "Running",
        "podIP": "127.0.0.1",
        "podIPs": [{"ip": "127.0.0.1"}],
        "startTime": now,
        "conditions": [
            {"type": kind, "status": word, "lastTransitionTime": now} for kind in ("Ready", "ContainersReady")
        ],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "restartCount": 0,
                "ready": ready,
                "started": True,
                "state": {"running": {"startedAt": now}},
            }
        ],
    }


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
