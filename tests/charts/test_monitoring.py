"""The objects of the monitoring: rendered where the cluster can take them, with the labels that dashboards rely on."""

from __future__ import annotations

import json

import pytest

from support.cluster.helm import CHART, PROMETHEUS, Manifest, pick, render

MONITORED = ("--values", str(CHART / "ci" / "monitored-values.yaml"))
KINDS = {"PodMonitor", "PrometheusRule"}


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    return render(*MONITORED, serves=(PROMETHEUS,))


def test_without_the_prometheus_operator_none_of_its_kinds_is_rendered() -> None:
    assert not KINDS & {one["kind"] for one in render(*MONITORED)}


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("monitoring.podMonitor.enabled=false", {"PrometheusRule"}),
        ("monitoring.prometheusRule.enabled=false", {"PodMonitor"}),
    ],
)
def test_each_kind_can_be_switched_off(value: str, left: set[str]) -> None:
    assert KINDS & {one["kind"] for one in render("--set", value, serves=(PROMETHEUS,))} == left


def test_ranks_are_found_by_the_labels_of_their_pods_and_scraped_at_all_their_ports(manifests: list[Manifest]) -> None:
    spec = pick(manifests, "PodMonitor", "-ranks")["spec"]
    assert spec["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "lockstep-engine",
        "app.kubernetes.io/part-of": "lockstep",
    }
    ports = [endpoint["port"] for endpoint in spec["podMetricsEndpoints"]]
    assert ports == [*(f"metrics-{local}" for local in range(8)), "http"]
    assert {endpoint["path"] for endpoint in spec["podMetricsEndpoints"]} == {"/metrics"}


def test_each_endpoint_of_a_rank_says_whose_it_is(manifests: list[Manifest]) -> None:
    for endpoint in pick(manifests, "PodMonitor", "-ranks")["spec"]["podMetricsEndpoints"]:
        targets = {rule["targetLabel"]: rule["sourceLabels"] for rule in endpoint["relabelings"]}
        assert targets == {
            label: [f"__meta_kubernetes_pod_label_serving_lockstep_dev_{label}"]
            for label in ("deployment", "role", "group")
        }
        assert endpoint["honorLabels"] is False


def test_the_operators_own_labels_win_over_those_of_its_pod(manifests: list[Manifest]) -> None:
    (endpoint,) = pick(manifests, "PodMonitor", "-operator")["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True


def test_the_operators_monitor_selects_the_operators_pod(manifests: list[Manifest]) -> None:
    selector = pick(manifests, "PodMonitor", "-operator")["spec"]["selector"]["matchLabels"]
    pod = pick(manifests, "Deployment")["spec"]["template"]
    assert selector.items() <= pod["metadata"]["labels"].items()
    assert [port["name"] for port in pod["spec"]["containers"][0]["ports"]] == ["metrics"]


@pytest.mark.parametrize(
    ("arguments", "selector"),
    [((), {"any": True}), (("--set", "watchNamespaces={a,b}"), {"matchNames": ["a", "b"]})],
    ids=["cluster", "namespaced"],
)
def test_ranks_are_looked_for_where_the_operator_serves(arguments: tuple[str, ...], selector: object) -> None:
    monitor = pick(render(*arguments, serves=(PROMETHEUS,)), "PodMonitor", "-ranks")
    assert monitor["spec"]["namespaceSelector"] == selector


def test_extra_labels_reach_the_objects_and_never_replace_the_charts_own(manifests: list[Manifest]) -> None:
    for one in manifests:
        if one["kind"] in KINDS:
            assert one["metadata"]["labels"]["release"] == "kube-prometheus-stack"
            assert one["metadata"]["labels"]["app.kubernetes.io/part-of"] == "lockstep"


def test_alerts_carry_the_routing_labels_and_the_runbooks_address(manifests: list[Manifest]) -> None:
    rules = [rule for group in pick(manifests, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    assert rules
    for rule in rules:
        assert rule["labels"]["team"] == "inference"
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["runbook_url"] == f"https://wiki.example/runbooks/{rule['alert']}.md"


def test_each_dashboard_is_one_config_map_that_the_sidecar_finds(manifests: list[Manifest]) -> None:
    files = sorted(CHART.glob("dashboards/*.json"))
    assert files
    for path in files:
        one = pick(manifests, "ConfigMap", path.stem.removeprefix("lockstep-"))
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"] == {"grafana_folder": "Lockstep"}
        assert json.loads(one["data"][path.name]) == json.loads(path.read_text())
        assert len(json.dumps(one)) < 256 * 1024  # the annotation of a client-side apply holds no more


def test_dashboards_can_be_left_out() -> None:
    assert not [one for one in render("--set", "dashboards.enabled=false") if one["kind"] == "ConfigMap"]
