"""The operator's own metrics, on a registry that is passed in. Series of a deployment go when it goes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from lockstep_operator.api.status import GROUP_STATES, Status

PREFIX = "lockstep_operator"


class Metrics:
    """All of the operator's series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reconciles = Counter(
            f"{PREFIX}_reconcile_total",
            "Reconciliations by result: ok, requeued (will look again by itself), conflict, error.",
            ["result"],
            registry=registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}_reconcile_seconds",
            "Duration of one reconciliation in seconds.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=registry,
        )
        self._writes = Counter(
            f"{PREFIX}_writes_total", "Writes that the API server took.", ["verb", "kind"], registry=registry
        )
        self._groups = Gauge(
            f"{PREFIX}_groups", "Groups by state.", ["namespace", "deployment", "state"], registry=registry
        )
        self._restarts = Counter(
            f"{PREFIX}_group_restarts_total",
            "Broken groups that were replaced, by the reason why they broke.",
            ["namespace", "deployment", "reason"],
            registry=registry,
        )
        self._deployments = Gauge(f"{PREFIX}_deployments", "ServingDeployments that exist.", registry=registry)
        self._known: dict[tuple[str, str], set[str]] = {}

    def count_write(self, verb: str, kind: str) -> None:
        """Count a write."""
        self._writes.labels(verb=verb, kind=kind).inc()

    def count_restart(self, namespace: str, deployment: str, reason: str) -> None:
        """Count a broken group that was replaced."""
        self._known.setdefault((namespace, deployment), set()).add(reason)
        self._restarts.labels(namespace=namespace, deployment=deployment, reason=reason).inc()

    def observe_reconcile(self, result: str, duration_s: float) -> None:
        """Count one reconciliation and its duration in seconds."""
        self._reconciles.labels(result=result).inc()
        self._seconds.observe(duration_s)

    def show(self, namespace: str, deployment: str, status: Status) -> None:
        """Show a deployment's groups."""
        self._known.setdefault((namespace, deployment), set())
        self._deployments.set(len(self._known))
        states = [group.state for group in status.groups]
        for state in GROUP_STATES:
            labels = self._groups.labels(namespace=namespace, deployment=deployment, state=state)
            labels.set(states.count(state))

    def forget(self, namespace: str, deployment: str) -> None:
        """Remove all series of a deployment that is gone."""
        reasons = self._known.pop((namespace, deployment), None)
        self._deployments.set(len(self._known))
        if reasons is None:
            return
        for state in GROUP_STATES:
            self._groups.remove(namespace, deployment, state)
        for reason in reasons:
            self._restarts.remove(namespace, deployment, reason)
