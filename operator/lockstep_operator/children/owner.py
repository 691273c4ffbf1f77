"""Who a child belongs to: the owner reference that is written into it, and the question whether it is there."""

from __future__ import annotations

from lockstep_operator.kinds import DEPLOYMENTS, Object


def add_owner(manifest: Object, deployment: str, uid: str) -> Object:
    """Return a manifest that belongs to a deployment, so that it is collected with it even without an operator."""
    reference = {
        "apiVersion": DEPLOYMENTS.api_version,
        "kind": DEPLOYMENTS.name,
        "name": deployment,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return manifest | {"metadata": manifest["metadata"] | {"ownerReferences": [reference]}}


def is_owned(item: Object, uid: str) -> bool:
    """Whether an object's controller is the deployment of that UID."""
    owners = item["metadata"].get("ownerReferences", [])
    return any(owner.get("controller") and owner["uid"] == uid for owner in owners)
