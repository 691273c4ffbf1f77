"""Objects as an API server would list them, for what only reads."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep_operator.clients.kube import Kube
from lockstep_operator.clients.launcher import Launchers
from lockstep_operator.errors import NotFound
from lockstep_operator.groups.state import Drain
from lockstep_operator.kinds import Kind, Object


class Stored(Kube):
    """An API server that holds these objects and serves no other kind.

    Args:
        items: what there is of each kind that is served.
    """

    def __init__(self, items: Mapping[Kind, list[Object]]) -> None:
        self._items = items

    def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Object]:
        """List all objects of a kind."""
        if kind not in self._items:
            raise NotFound(404, "the server could not find the requested resource")
        return self._items[kind]


class SilentLaunchers(Launchers):
    """Launchers that do not answer."""

    def read_drain(self, address: str) -> Drain | None:
        """Say nothing."""
        return None
