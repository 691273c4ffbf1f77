"""Limits that a schema cannot say, each as CEL for the API server and as a check for `lockstep-operator plan`.

A message names the field and the limit. A test gives every rule a bad object and asks both sides.
"""

from __future__ import annotations

import re
from typing import Any

from lockstep_operator.api.engine_options import OWN_FLAGS
from lockstep_operator.api.fields import Rule
from lockstep_operator.names import MAX_DEPLOYMENT_AND_ROLE

DNS_1035 = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
PVC_SOURCE = "^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[^/ ][^ ]*$"
GPU_RESOURCE = "nvidia.com/gpu"
MAX_GROUPS = 64
"""Groups of one deployment; with those that are ending the status has room for four times as many."""


def _only_one(field: str) -> Rule:
    return Rule(
        cel=f"self.{field} == 1",
        message=f"spec.roles[].parallelism.{field}: values above 1 are not supported yet; use 1",
        check=lambda parallelism: getattr(parallelism, field) == 1,
    )


def _fits_nodes(role: Any) -> bool:
    tensor, gpus = role.parallelism.tensor, role.gpus_per_node
    return bool(tensor < gpus or tensor % gpus == 0)


def _holds_batch(engine: Any) -> bool:
    return (
        engine.max_batch_size is None or engine.max_num_tokens is None or engine.max_batch_size <= engine.max_num_tokens
    )


def _names_no_gpu(role: Any) -> bool:
    return GPU_RESOURCE not in role.resources.requests and GPU_RESOURCE not in role.resources.limits


NAME_RULES = (
    Rule(
        cel=f"self.metadata.name.matches('{DNS_1035}')",
        message="metadata.name: must start with a letter and hold only lower-case letters, digits and '-'",
        check=lambda target: re.match(DNS_1035, target[0]) is not None,
    ),
    Rule(
        cel=f"self.spec.roles.all(role, size(self.metadata.name) + size(role.name) <= {MAX_DEPLOYMENT_AND_ROLE})",
        message=f"metadata.name: together with spec.roles[].name at most {MAX_DEPLOYMENT_AND_ROLE} characters, so that "
        "the names of pods stay within 63",
        check=lambda target: all(len(target[0]) + len(role) <= MAX_DEPLOYMENT_AND_ROLE for role in target[1]),
    ),
)
"""Rules of the whole object; `check` takes (metadata.name, names of the roles)."""

_COUNT_GROUPS = "self.roles.map(role, has(role.replicas) ? role.replicas : self.replicas).sum()"
SPEC_RULES = (
    Rule(
        cel="size(self.roles) >= 1",
        message="spec.roles: at least one role is needed",
        check=lambda spec: len(spec.roles) >= 1,
    ),
    Rule(
        cel="size(self.roles) == 0 || self.roles.exists_one(role, !has(role.replicas))",
        message="spec.roles[].replicas: exactly one role must leave it unset: the one that spec.replicas and `kubectl "
        "scale` are about",
        check=lambda spec: not spec.roles or [role.replicas for role in spec.roles].count(None) == 1,
    ),
    Rule(
        cel=f"{_COUNT_GROUPS} <= {MAX_GROUPS}",
        message=f"spec.roles: at most {MAX_GROUPS} groups of all roles together",
        check=lambda spec: sum(map(spec.count_replicas, spec.roles)) <= MAX_GROUPS,
    ),
)

MODEL_RULES = (
    Rule(
        cel="!self.source.startsWith('hf://')",
        message="spec.model.source: hf:// is not supported yet: use pvc://claim/path or a path in the image",
        check=lambda model: not model.source.startswith("hf://"),
    ),
    Rule(
        cel=f"self.source.startsWith('hf://') || self.source.startsWith('/') || self.source.matches('{PVC_SOURCE}')",
        message="spec.model.source: must be an absolute path in the image or pvc://claim/path",
        check=lambda model: re.match(rf"^hf://|^/|{PVC_SOURCE}", model.source) is not None,
    ),
    Rule(
        cel="!self.source.split('/').exists(part, part == '..')",
        message="spec.model.source: must not contain '..'",
        check=lambda model: ".." not in model.source.split("/"),
    ),
)

PARALLELISM_RULES = tuple(_only_one(field) for field in ("pipeline", "data", "expert"))

ENGINE_RULES = (
    Rule(
        cel="!has(self.maxBatchSize) || !has(self.maxNumTokens) || self.maxBatchSize <= self.maxNumTokens",
        message="spec.roles[].engine.maxNumTokens: must be at least maxBatchSize: every request takes a token",
        check=_holds_batch,
    ),
    Rule(
        cel=f"!self.extraArgs.exists(arg, arg.split('=')[0] in {OWN_FLAGS})",
        message=f"spec.roles[].engine.extraArgs: must not repeat flags that the operator sets: {', '.join(OWN_FLAGS)}",
        check=lambda engine: not any(arg.split("=")[0] in OWN_FLAGS for arg in engine.extra_args),
    ),
)

ROLE_RULES = (
    Rule(
        cel="self.type == 'aggregated'",
        message="spec.roles[].type: prefill and decode are not supported yet; use aggregated",
        check=lambda role: role.type == "aggregated",
    ),
    Rule(
        cel="self.parallelism.tensor < self.gpusPerNode || self.parallelism.tensor % self.gpusPerNode == 0",
        message="spec.roles[].parallelism.tensor: must be less than gpusPerNode or a multiple of it, so that all nodes "
        "of a group hold equally many ranks",
        check=_fits_nodes,
    ),
    Rule(
        cel=f"!('{GPU_RESOURCE}' in self.resources.requests) && !('{GPU_RESOURCE}' in self.resources.limits)",
        message=f"spec.roles[].resources: must not name {GPU_RESOURCE}, which follows from gpusPerNode",
        check=_names_no_gpu,
    ),
)
