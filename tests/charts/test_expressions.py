"""Every expression of the chart against real metrics: the names exist, and a real Prometheus has data for each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from lockstep_worker.contract import EXIT_HANG, exit_reason
from support.cluster.helm import PROMETHEUS, pick, render
from support.cluster.prometheus import Prometheus, run_prometheus
from support.data.expressions import DASHBOARDS, RULES, Expression, read_dashboard, read_metric_names, read_rules
from support.data.pages import frontend_page, operator_page, rank_page, serve_pages

IDENTITY = {"namespace": "team-a", "deployment": "recall", "role": "main"}
GROUP = {**IDENTITY, "group": "recall-main-1-0"}
PAGES = {
    "/rank/0": rank_page(0),
    "/rank/1": rank_page(1),
    "/frontend": frontend_page(),
    "/operator": operator_page("team-a", "recall"),
}
SCRAPES = 5
SHOWN = [
    expression for path in DASHBOARDS for expression in read_dashboard(path, IDENTITY, interval="5s", time_range="30s")
]
ALERTS = read_rules()


def by_place(expression: Expression) -> str:
    return expression.where


def honors_labels(suffix: str) -> bool:
    (first, *_) = pick(render(serves=(PROMETHEUS,)), "PodMonitor", suffix)["spec"]["podMetricsEndpoints"]
    return bool(first["honorLabels"])


def scrape_job(path: str, address: str, labels: dict[str, str], honor_labels: bool) -> dict[str, Any]:
    return {
        "job_name": path,
        "metrics_path": path,
        "honor_labels": honor_labels,
        "static_configs": [{"targets": [address], "labels": labels}],
    }


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with serve_pages(PAGES) as address:
        own = {"namespace": "lockstep-system", "pod": "lockstep-operator-0"}
        engine = [scrape_job(path, address, GROUP, honors_labels("-ranks")) for path in PAGES if path != "/operator"]
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [*engine, scrape_job("/operator", address, own, honors_labels("-operator"))],
        }
        with run_prometheus(configuration, tmp_path_factory.mktemp("prometheus")) as running:
            enough = f"min(count_over_time(up[1m]) and up == 1) >= {SCRAPES} and count(up) == {len(PAGES)}"
            running.wait_for(f"{SCRAPES} scrapes of each page", lambda: bool(running.query(enough)))
            yield running


@pytest.mark.parametrize("expression", [*SHOWN, *ALERTS], ids=by_place)
def test_every_metric_of_an_expression_is_one_that_we_serve(expression: Expression) -> None:
    served = read_metric_names("\n".join(page().decode() for page in PAGES.values()))
    assert read_metric_names(expression.text)
    assert read_metric_names(expression.text) <= served


@pytest.mark.parametrize("expression", SHOWN, ids=by_place)
def test_every_panel_shows_data(prometheus: Prometheus, expression: Expression) -> None:
    values = [float(series["value"][1]) for series in prometheus.query(expression.text)]
    assert values, expression.text
    assert all(math.isfinite(value) for value in values), expression.text


@pytest.mark.parametrize("expression", ALERTS, ids=by_place)
def test_every_alert_is_evaluated_without_error(prometheus: Prometheus, expression: Expression) -> None:
    def rule() -> dict[str, Any]:
        groups = prometheus.get("rules")["groups"]
        return next(rule for group in groups for rule in group["rules"] if rule["name"] == expression.where)

    prometheus.wait_for("evaluation", lambda: rule()["health"] != "unknown")
    assert (rule()["health"], rule().get("lastError")) == ("ok", None)


def test_a_hang_that_the_operator_counts_fires_with_the_deployments_name(prometheus: Prometheus) -> None:
    assert exit_reason(EXIT_HANG) == "Hang"
    prometheus.wait_for("alert", lambda: bool(prometheus.query('ALERTS{alertname="LockstepHangDetected"}')))
    (alert,) = prometheus.query('ALERTS{alertname="LockstepHangDetected"}')
    assert {"namespace": "team-a", "deployment": "recall", "severity": "critical"}.items() <= alert["metric"].items()


def test_the_namespace_of_the_operators_series_is_the_deployments(prometheus: Prometheus) -> None:
    assert prometheus.query('lockstep_operator_groups{namespace="team-a",state="Ready"} == 1')
    assert not prometheus.query('{exported_namespace=~".+"}')


@pytest.mark.parametrize("label", ["namespace", "deployment", "role"])
def test_each_variable_of_the_dashboard_finds_its_values(prometheus: Prometheus, label: str) -> None:
    found = prometheus.query(f"count by ({label}) (lockstep_iterations_total)")
    assert [series["metric"][label] for series in found] == [IDENTITY[label]]
