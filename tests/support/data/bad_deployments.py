"""Deployments that must be refused, one for each limit, with the field that the refusal has to name."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep_operator.kinds import Object
from lockstep_operator.names import MAX_DEPLOYMENT_AND_ROLE
from support.cluster.deployments import build_deployment, build_two_roles


def _bad(case: str, path: str, value: Any, words: str, **spec: Any) -> Any:
    """Set one field, given by its path, to a value that its limits forbid; `spec` are other fields of the spec."""
    item = build_deployment(**spec)
    target: Any = item
    *parents, last = path.split(".")
    for part in parents:
        target = target[int(part)] if part.isdigit() else target.setdefault(part, {})
    if isinstance(target, list):
        target[int(last)] = value
    elif value is None:
        del target[last]
    else:
        target[last] = value
    return pytest.param(item, words, id=case)


def _nine_roles() -> list[Object]:
    (role,) = build_deployment()["spec"]["roles"]
    return [role | {"name": f"role{number}"} for number in range(9)]


def _two_scaled_roles() -> list[Object]:
    main, second = build_two_roles()
    del second["replicas"]
    return [main, second]


def _uneven_role() -> Object:
    role: Object = build_deployment()["spec"]["roles"][0]
    return role | {"parallelism": {"tensor": 6}, "gpusPerNode": 4}


ROLE = "spec.roles.0"
LONG = "a" * (MAX_DEPLOYMENT_AND_ROLE - len("main") + 1)

RULES = [
    _bad("name with a dot", "metadata.name", "my.model", "metadata.name: must start with a letter"),
    _bad("name starts with a digit", "metadata.name", "8b", "metadata.name: must start with a letter"),
    _bad("name too long", "metadata.name", LONG, "metadata.name: together with spec.roles[].name at most"),
    _bad(
        "second role's name too long",
        "metadata.name",
        "a" * (MAX_DEPLOYMENT_AND_ROLE - len("main")),
        "metadata.name: together with spec.roles[]",
        roles=build_two_roles(),
    ),
    _bad("no role", "spec.roles", [], "spec.roles: at least one role"),
    _bad("no role follows", f"{ROLE}.replicas", 1, "spec.roles[].replicas: exactly one role must leave it unset"),
    _bad("two roles follow", "spec.roles", _two_scaled_roles(), "spec.roles[].replicas: exactly one role must leave"),
    _bad("too many groups", "spec.roles", build_two_roles(replicas=64), "spec.roles: at most 64 groups"),
    _bad("second role decodes", "spec.roles", build_two_roles(type="decode"), "spec.roles[].type: prefill and decode"),
    _bad("prefill", f"{ROLE}.type", "prefill", "spec.roles[].type: prefill and decode are not supported yet"),
    _bad("decode", f"{ROLE}.type", "decode", "spec.roles[].type: prefill and decode are not supported yet"),
    _bad("uneven nodes", ROLE, _uneven_role(), "spec.roles[].parallelism.tensor: must be less than gpusPerNode"),
    _bad("pipeline", f"{ROLE}.parallelism.pipeline", 2, "spec.roles[].parallelism.pipeline: values above 1"),
    _bad("data", f"{ROLE}.parallelism.data", 2, "spec.roles[].parallelism.data: values above 1"),
    _bad("expert", f"{ROLE}.parallelism.expert", 2, "spec.roles[].parallelism.expert: values above 1"),
    _bad("model of the hub", "spec.model.source", "hf://a/b", "spec.model.source: hf:// is not supported yet"),
    _bad("relative path", "spec.model.source", "models/a", "spec.model.source: must be an absolute path"),
    _bad("claim without a path", "spec.model.source", "pvc://claim", "spec.model.source: must be an absolute path"),
    _bad("path that climbs", "spec.model.source", "pvc://claim/../x", "spec.model.source: must not contain '..'"),
    _bad("GPUs as a limit", f"{ROLE}.resources.limits", {"nvidia.com/gpu": 1}, "spec.roles[].resources: must not name"),
    _bad("GPUs as a request", f"{ROLE}.resources.requests", {"nvidia.com/gpu": 1}, "spec.roles[].resources: must not"),
    _bad("own flag", f"{ROLE}.engine.extraArgs", ["--model=x"], "spec.roles[].engine.extraArgs: must not repeat"),
    _bad(
        "batch above tokens",
        f"{ROLE}.engine",
        {"maxBatchSize": 9, "maxNumTokens": 8},
        "spec.roles[].engine.maxNumTokens: must be at least maxBatchSize",
    ),
]
"""What the rules refuse: both sides say the same words."""
SCHEMA = [
    _bad("no model", "spec.model", None, "spec.model"),
    _bad("no source", "spec.model.source", None, "spec.model.source"),
    _bad("no served name", "spec.model.servedName", None, "spec.model.servedName"),
    _bad("served name with a space", "spec.model.servedName", "a b", "spec.model.servedName"),
    _bad("no length", "spec.model.maxModelLen", 0, "spec.model.maxModelLen"),
    _bad("unknown number format", "spec.model.dtype", "int3", "spec.model.dtype"),
    _bad("no image", "spec.image", None, "spec.image"),
    _bad("image with a space", "spec.image", "a b", "spec.image"),
    _bad("unknown pull policy", "spec.imagePullPolicy", "Sometimes", "spec.imagePullPolicy"),
    _bad("replicas below 0", "spec.replicas", -1, "spec.replicas"),
    _bad("replicas above the limit", "spec.replicas", 65, "spec.replicas"),
    _bad("replicas as text", "spec.replicas", "two", "spec.replicas"),
    _bad("nine roles", "spec.roles", _nine_roles(), "spec.roles"),
    _bad("two roles of one name", "spec.roles", build_two_roles(name="main"), "spec.roles"),
    _bad("role's replicas below 0", f"{ROLE}.replicas", -1, "spec.roles[0].replicas"),
    _bad("role's replicas above the limit", f"{ROLE}.replicas", 65, "spec.roles[0].replicas"),
    _bad("role name in capitals", f"{ROLE}.name", "Main", "spec.roles[0].name"),
    _bad("unknown type", f"{ROLE}.type", "router", "spec.roles[0].type"),
    _bad("tensor 0", f"{ROLE}.parallelism.tensor", 0, "spec.roles[0].parallelism.tensor"),
    _bad("tensor beyond a rack", f"{ROLE}.parallelism.tensor", 73, "spec.roles[0].parallelism.tensor"),
    _bad("no GPU", f"{ROLE}.gpusPerNode", 0, "spec.roles[0].gpusPerNode"),
    _bad("no batch", f"{ROLE}.engine.maxBatchSize", 0, "spec.roles[0].engine.maxBatchSize"),
    _bad("fraction above 1", f"{ROLE}.engine.kvCacheMemoryFraction", 1.5, "spec.roles[0].engine.kvCacheMemoryFraction"),
    _bad("overlap as text", f"{ROLE}.engine.overlap", "yes", "spec.roles[0].engine.overlap"),
    _bad("hang timeout below 0", f"{ROLE}.hangDetector.timeoutSeconds", -1, "hangDetector.timeoutSeconds"),
    _bad("no quantity", f"{ROLE}.resources.requests.memory", "lots", "spec.roles[0].resources.requests"),
    _bad("unknown effect", f"{ROLE}.tolerations", [{"effect": "No"}], "spec.roles[0].tolerations[0].effect"),
    _bad("nothing unavailable", "spec.rollout.maxUnavailable", 0, "spec.rollout.maxUnavailable"),
    _bad("restarts below 0", "spec.restartPolicy.maxRestarts", -1, "spec.restartPolicy.maxRestarts"),
    _bad("window too short", "spec.restartPolicy.windowSeconds", 5, "spec.restartPolicy.windowSeconds"),
    _bad("backoff too long", "spec.restartPolicy.backoffSeconds", 601, "spec.restartPolicy.backoffSeconds"),
    _bad("drain too long", "spec.drainTimeoutSeconds", 3601, "spec.drainTimeoutSeconds"),
    _bad("paused as text", "spec.paused", "no", "spec.paused"),
    _bad("secret without a name", "spec.imagePullSecrets", [{}], "spec.imagePullSecrets[0].name"),
    _bad("two secrets of one name", "spec.imagePullSecrets", [{"name": "a"}] * 2, "spec.imagePullSecrets"),
]
"""What the schema refuses: both sides name the field, each in its own words."""
