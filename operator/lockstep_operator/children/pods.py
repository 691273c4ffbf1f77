"""The pod templates of a group: the launcher, which is rank 0's node and serves HTTP, and the workers.

The launcher's node runs ranks like every other node, so both ask for the same. Pods obey the `restricted` pod security
standard. Why no more is in a pod's environment: mpirun starts ranks through sshd, which does not pass it on.
"""

from __future__ import annotations

from typing import Any

from lockstep_operator.api.decode import encode
from lockstep_operator.api.engine_options import PVC_SCHEME, build_serve_command
from lockstep_operator.api.rules import GPU_RESOURCE
from lockstep_operator.api.spec import Role, Spec
from lockstep_worker import contract

STARTUP_LIMIT_S = 45 * 60
"""A group that does not answer within this time of its start is ended; large models load for long."""
STARTUP_PERIOD_S = 2
STOP_MARGIN_S = 30
"""Grace beyond the drain, for the ranks to end."""
DEFAULT_TOLERATIONS = (
    {"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"},
    {"key": "kubernetes.io/arch", "operator": "Equal", "value": "arm64", "effect": "NoSchedule"},
)


def build_launcher_template(spec: Spec, role: Role, labels: dict[str, str]) -> dict[str, Any]:
    """Build the launcher's pod template."""
    container = _build_container(spec, role, "launcher", build_serve_command(spec, role)) | {
        "startupProbe": _probe_http(
            contract.HEALTH_PATH, STARTUP_PERIOD_S, timeout_s=2, failures=STARTUP_LIMIT_S // STARTUP_PERIOD_S
        ),
        "readinessProbe": _probe_http(contract.READY_PATH, period_s=2, timeout_s=2, failures=2),
        "livenessProbe": _probe_http(contract.HEALTH_PATH, period_s=10, timeout_s=10, failures=12),
    }
    container["ports"] = [{"name": "http", "containerPort": contract.HTTP_PORT}, *container["ports"]]
    return _build_template(spec, role, labels, container)


def build_worker_template(spec: Spec, role: Role, labels: dict[str, str]) -> dict[str, Any]:
    """Build the workers' pod template: an ssh server that waits for mpirun."""
    container = _build_container(spec, role, "worker", contract.sshd_command()) | {
        "readinessProbe": {"tcpSocket": {"port": contract.SSH_PORT}, "periodSeconds": 2, "failureThreshold": 2}
    }
    container["ports"] = [{"name": "ssh", "containerPort": contract.SSH_PORT}, *container["ports"]]
    return _build_template(spec, role, labels, container)


def _build_template(spec: Spec, role: Role, labels: dict[str, str], container: dict[str, Any]) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if spec.model.source.startswith(PVC_SCHEME):
        claim = spec.model.source.removeprefix(PVC_SCHEME).partition("/")[0]
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec.drain_timeout_seconds + STOP_MARGIN_S,
        "securityContext": {
            "runAsUser": contract.USER_ID,
            "runAsGroup": contract.USER_ID,
            "runAsNonRoot": True,
            "fsGroup": contract.USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [*DEFAULT_TOLERATIONS, *map(encode, role.tolerations)],
        "containers": [container],
        "volumes": volumes,
    }
    if role.node_selector:
        pod["nodeSelector"] = dict(role.node_selector)
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [encode(secret) for secret in spec.image_pull_secrets]
    return {"metadata": {"labels": labels}, "spec": pod}


def _build_container(spec: Spec, role: Role, name: str, command: list[str]) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    if spec.model.source.startswith(PVC_SCHEME):
        mounts.append({"name": "model", "mountPath": contract.MODEL_MOUNT, "readOnly": True})
    return {
        "name": name,
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": command,
        "ports": [
            {"name": f"metrics-{rank}", "containerPort": contract.RANK_METRICS_PORT + rank}
            for rank in range(role.slots)
        ],
        "resources": {
            "requests": dict(role.resources.requests) | {GPU_RESOURCE: role.slots},
            "limits": dict(role.resources.limits) | {GPU_RESOURCE: role.slots},
        },
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePath": contract.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _probe_http(path: str, period_s: int, *, timeout_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }
