"""Reads the PromQL out of the chart's dashboards and rules, as Grafana and Prometheus would run it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.cluster.helm import CHART

DASHBOARDS = sorted(CHART.glob("dashboards/*.json"))
RULES = CHART / "rules" / "lockstep.yaml"
EVERY_VALUE = {"namespace": ".*", "deployment": ".*", "role": ".*"}
"""What the dashboard's variables stand for when nothing is picked."""


@dataclass(frozen=True, slots=True)
class Expression:
    """One PromQL expression and where it stands."""

    where: str
    text: str


def read_panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels that show data, those inside rows too."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


def read_dashboard(
    path: Path, variables: Mapping[str, str] = EVERY_VALUE, *, interval: str = "1m", time_range: str = "30m"
) -> list[Expression]:
    """A dashboard's expressions with Grafana's variables put in.

    Args:
        path: the dashboard's JSON file.
        variables: a value, or a regular expression, for each of the dashboard's own variables.
        interval: `$__rate_interval`; at least four scrapes.
        time_range: `$__range`.
    """
    known = {"__rate_interval": interval, "__range": time_range, **variables}
    return [
        Expression(panel["title"], re.sub(r"\$(\w+)", lambda match: known[match[1]], target["expr"]))
        for panel in read_panels(json.loads(path.read_text()))
        for target in panel["targets"]
    ]


def read_rules(path: Path = RULES) -> list[Expression]:
    """The alerts' expressions."""
    groups = yaml.safe_load(path.read_text())["groups"]
    return [Expression(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


def read_metric_names(text: str) -> set[str]:
    """Names of our metrics in an expression; label names and values never begin with our prefix."""
    return set(re.findall(r"\b(?:lockstep_|vllm:)\w+", text))
