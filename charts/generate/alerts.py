"""The alert rules: when someone must look, and why; knows metric and label names, not dashboards.

An engine's page goes away with its group, so what must be told after the group's end comes from the operator's series.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

RUNBOOKS = "https://github.com/lockstep/lockstep/blob/main/docs/runbooks"
"""Where the plain rules file points; the chart puts its own value in."""
_OF = "{{ $labels.deployment }} in {{ $labels.namespace }}"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert; `lasting` is how long the expression must hold, as Prometheus writes durations."""

    name: str
    severity: str
    expr: str
    lasting: str
    summary: str
    description: str


def _share_of_step(histogram: str) -> str:
    """Mean of a histogram of seconds per step, divided by the mean step; the same whether one rank observes or all."""
    by = "sum by (namespace, deployment, role, group)"

    def mean(name: str) -> str:
        return f"({by} (rate(lockstep_{name}_sum[10m]))\n  / {by} (rate(lockstep_{name}_count[10m])))"

    return f"{mean(histogram)}\n/ {mean('iteration_seconds')}"


_BUSY = "sum by (namespace, deployment, role, group) (rate(lockstep_iteration_seconds_count[10m])) > 1"
"""Groups that step: with a step now and then, a share says nothing."""
_RESTARTS = "lockstep_operator_group_restarts_total"
_HANGS = f'{_RESTARTS}{{reason="Hang"}}'


def _groups(states: str) -> str:
    return f"sum by (namespace, deployment) (lockstep_operator_groups{{state{states}}}) > 0"


_READY = _groups('="Ready"')
_NOT_READY = _groups('!~"Ready|Draining|Terminating"')
_WANTED = _groups('!~"Draining|Terminating"')

ENGINE_ALERTS = (
    Alert(
        "LockstepHangDetected",
        "critical",
        # `increase` sees nothing of a series that is born at 1, so new series are taken as they are.
        f"sum by (namespace, deployment) (\n  increase({_HANGS}[15m]) > 0\n"
        f"  or ({_HANGS}\n      unless {_HANGS} offset 15m)\n)\n"
        "or sum by (namespace, deployment) (lockstep_hang_detector_trips_total) > 0",
        "0m",
        f"A rank of {_OF} hung",
        "The hang detector ended a group because a rank made no progress for longer than its timeout; the operator "
        "replaces the group. The rank's log holds all stacks and the state of the step.",
    ),
    Alert(
        "LockstepNoProgress",
        "warning",
        "(time() - lockstep_hang_detector_last_progress_timestamp_seconds > 60)\n"
        "and lockstep_hang_detector_armed == 1\n"
        "and lockstep_hang_detector_last_progress_timestamp_seconds > 0",
        "1m",
        "Rank {{ $labels.rank }} of group {{ $labels.group }} makes no progress",
        "Its hang detector is armed and its last progress is {{ $value | humanizeDuration }} ago. When the "
        "detector's timeout is over, it writes all stacks to the log and ends the group.",
    ),
    Alert(
        "LockstepBubbleHigh",
        "warning",
        f"{_share_of_step('iteration_bubble_seconds')}\n> 0.2\nand {_BUSY}",
        "15m",
        "Devices of group {{ $labels.group }} wait for the host",
        "The device sat idle for {{ $value | humanizePercentage }} of each step, above 20%, while there was work.",
    ),
    Alert(
        "LockstepRankSkewHigh",
        "warning",
        f"{_share_of_step('rank_skew_seconds')}\n> 0.2\nand {_BUSY}",
        "15m",
        "The ranks of group {{ $labels.group }} do not arrive together",
        "The last rank enters the exchange later than the first by {{ $value | humanizePercentage }} of a step, above "
        "20%; all ranks wait for the last.",
    ),
)
OPERATOR_ALERTS = (
    Alert(
        "LockstepDeploymentNotReady",
        "critical",
        f"{_WANTED}\nunless {_READY}",
        "15m",
        f"No group of {_OF} is ready",
        "Groups wanted: {{ $value }}, ready: 0. Requests fail.",
    ),
    Alert(
        "LockstepGroupNotReady",
        "warning",
        f"{_NOT_READY}\nand {_READY}",
        "30m",
        f"Some groups of {_OF} are not ready",
        "Groups not ready: {{ $value }}. The others serve, with less room.",
    ),
    Alert(
        "LockstepGroupRestarting",
        "warning",
        # Not `increase`, for the same reason; a restart of the operator's container hides earlier ones.
        f"sum by (namespace, deployment) (clamp_min(\n"
        f"  {_RESTARTS} - ({_RESTARTS} offset 1h or 0 * {_RESTARTS}), 0\n)) > 2",
        "0m",
        f"Groups of {_OF} fail again and again",
        "{{ $value | humanize }} groups were replaced within an hour. When the restart budget is used up, the operator "
        "stops replacing them.",
    ),
    Alert(
        "LockstepOperatorDown",
        "critical",
        "absent(lockstep_operator_deployments)",
        "10m",
        "The Lockstep operator is gone from the metrics",
        "Running groups go on, but nothing replaces a broken one, and changes and deletions wait.",
    ),
)


class _Literal(str):
    """A text that YAML writes as a block, so that an expression reads as it was written."""


yaml.SafeDumper.add_representer(
    _Literal, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
)


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": _Literal(f"{alert.expr}\n"),
        "for": alert.lasting,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{RUNBOOKS}/{alert.name}.md",
        },
    }


def render_rules() -> str:
    """Render the rules file as Prometheus and promtool read it."""
    groups = [
        {"name": name, "rules": [_rule(alert) for alert in alerts]}
        for name, alerts in (("lockstep-engine", ENGINE_ALERTS), ("lockstep-operator", OPERATOR_ALERTS))
    ]
    head = "# Generated by `python -m charts.generate`; a plain rules file, usable without the chart too.\n"
    return head + yaml.safe_dump({"groups": groups}, sort_keys=False, width=1000, allow_unicode=True)
