"""What a file of ServingDeployments would become, without a cluster: the manifests of a first reconciliation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import yaml

from lockstep_operator import names
from lockstep_operator.api.dump import dump_yaml
from lockstep_operator.api.spec import find_identity_faults, parse_deployment
from lockstep_operator.api.status import Status
from lockstep_operator.errors import SpecError
from lockstep_operator.groups.state import Observed
from lockstep_operator.plan.actions import CreateChild
from lockstep_operator.plan.plan import plan


def plan_file(text: str) -> str:
    """Return the manifests as YAML documents, without the owner references, which need a cluster.

    Raises:
        SpecError: lists every fault of every document, each with its field.
    """
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise SpecError([f"not YAML: {error}"]) from error
    if not documents:
        raise SpecError(["the file holds no object"])
    manifests: list[dict[str, Any]] = []
    problems: list[str] = []
    for number, document in enumerate(documents, start=1):
        try:
            manifests += plan_document(document)
        except SpecError as error:
            where = f"document {number}: " if len(documents) > 1 else ""
            problems += [f"{where}{problem}" for problem in error.problems]
    if problems:
        raise SpecError(problems)
    return dump_yaml(manifests)


def plan_document(document: Any) -> list[dict[str, Any]]:
    """List the manifests that one ServingDeployment would become.

    Raises:
        SpecError: lists every fault with its field.
    """
    if not isinstance(document, dict):
        raise SpecError(["must be an object with apiVersion, kind, metadata and spec"])
    faults = find_identity_faults(document)
    if faults:
        raise SpecError(faults)
    spec = parse_deployment(document)
    seen = Observed(
        namespace=document["metadata"].get("namespace", "default"),
        name=document["metadata"]["name"],
        uid="",
        generation=1,
        deleting=False,
        finalizers=(names.FINALIZER,),
        resource_version="",
        spec=spec,
        problems=(),
        before=Status(),
    )
    wanted = plan(seen, datetime.now(UTC)).actions
    return [action.manifest for action in wanted if isinstance(action, CreateChild)]
