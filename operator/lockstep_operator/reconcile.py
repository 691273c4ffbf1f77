"""observe -> plan -> apply -> status, once, for one deployment. Everything is decided from what is there now."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from lockstep_operator.api.decode import encode
from lockstep_operator.api.status import Status
from lockstep_operator.apply import Applier
from lockstep_operator.children.child import Child
from lockstep_operator.clients.kube import Kube
from lockstep_operator.clients.launcher import Launchers
from lockstep_operator.errors import KubeError
from lockstep_operator.groups.state import Key, Observed
from lockstep_operator.kinds import DEPLOYMENTS, EVENTS, Object
from lockstep_operator.metrics import Metrics
from lockstep_operator.observe import observe
from lockstep_operator.plan.plan import plan
from lockstep_operator.status.events import build_event, list_notes
from lockstep_operator.status.status import status

logger = logging.getLogger(__name__)
CONFLICT_RETRY_S = 30.0
WRITTEN_RETRY_S = 1.0
"""After a status was written: a failure that stands in it now is acted upon."""


class Reconciler:
    """Brings deployments to what their specs say, one pass at a time.

    Args:
        kube: the API server.
        launchers: the way to launchers.
        metrics: told what was done.
        children: the kinds of children that a deployment has.
        clock: the time, with a time zone.
    """

    def __init__(
        self,
        kube: Kube,
        launchers: Launchers,
        metrics: Metrics,
        children: tuple[Child, ...],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._kube = kube
        self._launchers = launchers
        self._metrics = metrics
        self._children = children
        self._clock = clock
        self._applier = Applier(kube, launchers, self._count_restart)

    def reconcile(self, key: Key) -> float | None:
        """Do one pass.

        Returns:
            Seconds after which to look again although nothing happened; None when only an event matters.

        Raises:
            KubeError: the API server refused something; try again later.
        """
        deployment = self._kube.find(DEPLOYMENTS, *key)
        if deployment is None:
            self._metrics.forget(*key)
            return None
        seen = observe(self._kube, self._launchers, deployment, self._children)
        now = self._clock()
        planned = plan(seen, now, self._children)
        conflicts = self._applier.apply(seen, planned.actions, now)
        if planned.changes_deployment:
            return 0.0
        after = status(seen, conflicts, now, planned.missing)
        self._metrics.show(*key, after)
        if self._write_status(seen, deployment, after, now):
            return WRITTEN_RETRY_S
        return CONFLICT_RETRY_S if conflicts else planned.again_s

    def _write_status(self, seen: Observed, deployment: Object, after: Status, now: datetime) -> bool:
        """Write a status that differs, then say what changed; True when it was written."""
        if after == seen.before or (seen.deleting and not seen.has_finalizer):
            return False
        self._kube.replace_status(DEPLOYMENTS, deployment | {"status": encode(after)})
        for note in list_notes(seen.before, after):
            try:
                self._kube.create(EVENTS, build_event(seen, note, now))
            except KubeError as error:  # an Event is a courtesy; a namespace that is being deleted takes none
                logger.warning("%s/%s: Event %s: %s", seen.namespace, seen.name, note.reason, error)
        return True

    def _count_restart(self, seen: Observed, reason: str) -> None:
        self._metrics.count_restart(seen.namespace, seen.name, reason)
