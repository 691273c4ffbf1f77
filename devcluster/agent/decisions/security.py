"""Pure: who a container's processes are, from the security contexts and the image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devcluster.agent.decisions.sandbox import DEFAULT_CAPABILITIES, Identity
from devcluster.agent.errors import ConfigError
from devcluster.agent.images import Image
from devcluster.kube.objects import Object


def container_identity(pod: Object, container: Object, image: Image) -> Identity:
    """Decide user, groups and capabilities; the container's context goes before the pod's, then the image's user.

    Raises:
        ConfigError: `runAsNonRoot` and the user is root.
    """
    whole: Mapping[str, Any] = pod["spec"].get("securityContext") or {}
    own: Mapping[str, Any] = container.get("securityContext") or {}
    uid = _first(own.get("runAsUser"), whole.get("runAsUser"), image.user)
    gid = _first(own.get("runAsGroup"), whole.get("runAsGroup"), image.group_of(uid))
    if _first(own.get("runAsNonRoot"), whole.get("runAsNonRoot"), False) and uid == 0:
        raise ConfigError("container has runAsNonRoot and image will run as root")
    groups = [*whole.get("supplementalGroups", [])]
    if whole.get("fsGroup") is not None:
        groups.append(whole["fsGroup"])
    return Identity(uid, gid, tuple(groups), _capabilities(own) if uid == 0 else ())


def fs_group(pod: Object) -> int | None:
    """Return the group that owns the pod's volumes, if it has one."""
    group = (pod["spec"].get("securityContext") or {}).get("fsGroup")
    return None if group is None else int(group)


def has_read_only_root(container: Object) -> bool:
    """Say whether the container's own file system is read-only."""
    return bool((container.get("securityContext") or {}).get("readOnlyRootFilesystem", False))


def _capabilities(own: Mapping[str, Any]) -> tuple[str, ...]:
    wanted = own.get("capabilities") or {}
    dropped, added = ({name.lower() for name in wanted.get(key, [])} for key in ("drop", "add"))
    kept = set() if "all" in dropped else set(DEFAULT_CAPABILITIES) - dropped
    return tuple(sorted(kept | added))


def _first(*values: Any) -> Any:
    """Return the first value that is set."""
    return next((value for value in values if value is not None), None)
