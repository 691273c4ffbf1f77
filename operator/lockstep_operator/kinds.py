"""Kinds of objects and where the API server keeps them.

A kind that the operator makes for a deployment is declared beside its manifest, in `children`; the others stand here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from lockstep_operator import names

Object = dict[str, Any]
"""An object as the API server's JSON has it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object."""

    name: str
    group: str
    """The API group; empty for the core API."""
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        """What an object's `apiVersion` says."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def is_core(self) -> bool:
        """It is of the core API, which every API server serves at all times."""
        return not self.group

    def build_path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Build the path of an object, or of the collection when no name is given."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = ["namespaces", namespace] if namespace else []
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join([root, *(quote(part, safe="") for part in parts)])


def read_label(item: Object, label: str) -> str:
    """Read one of an object's labels; empty when it has none of that name."""
    return str(item["metadata"].get("labels", {}).get(label, ""))


DEPLOYMENTS = Kind(names.KIND, names.API_GROUP, names.API_VERSION, names.PLURAL)
PODS = Kind("Pod", "", "v1", "pods")
EVENTS = Kind("Event", "events.k8s.io", "v1", "events")
