"""Puts the engine dashboard together: its variables and its rows; the one place that gives it an identity."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from charts.generate import rows_engine, rows_serving
from charts.generate.panels import DATASOURCE

UID = "lockstep-engine"
"""Stays for ever: links and bookmarks hold it. Grafana takes 40 characters at most."""
ROWS = (
    ("Overview", rows_engine.overview),
    ("Bubble", rows_engine.bubble),
    ("Step", rows_engine.step),
    ("Collectives", rows_engine.collectives),
    ("Hang detector", rows_engine.hang_detector),
    ("Requests", rows_serving.requests),
    ("KV cache and sampler", rows_serving.cache_and_sampler),
    ("Groups and operator", rows_serving.groups),
)


def _variable(name: str, label: str, scope: str) -> dashboard.QueryVariable:
    """A list of a label's values, narrowed by the variables before it; all of them at first."""
    variable = dashboard.QueryVariable(name).label(label).datasource(DATASOURCE)
    variable.query(f"label_values(lockstep_iterations_total{{{scope}}}, {name})")
    variable.multi(True).include_all(True).all_value(".*").sort(model.VariableSort.ALPHABETICAL_ASC)
    variable.current(model.VariableOption(selected=True, text="All", value="$__all"))
    return variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)


def build_dashboard() -> dashboard.Dashboard:
    """Build the dashboard; the panels number themselves in the order of the rows_engine."""
    board = dashboard.Dashboard("Lockstep engine").uid(UID).tags(["lockstep", "llm", "inference"])
    board.description("Step by step: how long devices wait for the host, and whether every rank still moves.")
    board.time("now-30m", "now").refresh("15s").timezone("browser").tooltip(model.DashboardCursorSync.CROSSHAIR)
    board.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    board.with_variable(_variable("namespace", "Namespace", ""))
    board.with_variable(_variable("deployment", "Deployment", 'namespace=~"$namespace"'))
    board.with_variable(_variable("role", "Role", 'namespace=~"$namespace",deployment=~"$deployment"'))
    identity = 0
    for title, build in ROWS:
        identity += 1
        board.with_row(dashboard.Row(title).id(identity))
        for panel in build():
            identity += 1
            board.with_panel(panel.id(identity))
    return board


def render_dashboard() -> str:
    """Render the dashboard as the JSON text that Grafana loads."""
    encoded: Any = JSONEncoder(sort_keys=True, indent=2).encode(build_dashboard().build())
    return f"{encoded}\n"
