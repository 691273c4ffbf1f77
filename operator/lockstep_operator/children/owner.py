"""Who a child belongs to: the owner reference that is written into it, and the question whether it is there."""

from __future__ import annotations

from typing import Any

from lockstep_operator import names


def add_owner(manifest: dict[str, Any], deployment: str, uid: str) -> dict[str, Any]:
    """Return a manifest that belongs to a deployment, so that it is collected with it even without an operator."""
    reference = {
        "apiVersion": f"{names.API_GROUP}/{names.API_VERSION}",
        "kind": names.KIND,
        "name": deployment,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return manifest | {"metadata": manifest["metadata"] | {"ownerReferences": [reference]}}


def is_owned(item: dict[str, Any], uid: str) -> bool:
    """Whether an object's controller is the deployment of that UID."""
    owners = item["metadata"].get("ownerReferences", [])
    return any(owner.get("controller") and owner["uid"] == uid for owner in owners)
