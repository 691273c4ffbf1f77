"""Prometheus labels a pod's series as the chart's PodMonitors say; the pages are served by pods of the cluster."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.control.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.product.lockstep import pod_monitors
from devcluster.prometheus.monitors import scrape_configs
from devcluster.prometheus.server import Prometheus, start_prometheus, stop_prometheus
from devcluster.prometheus.targets import targets_file

PAGE = 'lockstep_iterations_total{kind="empty",deployment="forged"} 5\n'


def rank_pod() -> dict[str, Any]:
    serve = f"mkdir /tmp/page && cd /tmp/page && printf '%s' '{PAGE}' > metrics && exec python3 -m http.server 9400"
    ports = [{"name": "metrics-0", "containerPort": 9400}, {"name": "ssh", "containerPort": 2222}]
    mine = {"deployment": "minimal", "role": "main", "group": "minimal-main-0"}
    labels = {f"serving.lockstep.dev/{key}": value for key, value in mine.items()}
    labels |= {"app.kubernetes.io/name": "lockstep-engine", "app.kubernetes.io/part-of": "lockstep"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "rank", "namespace": "default", "labels": labels},
        "spec": {"containers": [{"name": "engine", "image": "any", "command": ["sh", "-c", serve], "ports": ports}]},
    }


@pytest.fixture
def prometheus(cluster_with_nodes: Cluster) -> Iterator[Prometheus]:
    cluster_with_nodes.apply(rank_pod())
    yield start_prometheus(cluster_with_nodes, pod_monitors(cluster_with_nodes), scrape_interval_s=1)
    stop_prometheus(cluster_with_nodes)
    cluster_with_nodes.kubectl("delete", "pod/rank", "--grace-period=1")


@pytest.mark.cluster
def test_a_ranks_series_say_whose_they_are_whatever_its_page_says(
    cluster_with_nodes: Cluster, prometheus: Prometheus
) -> None:
    scraped = 'lockstep_iterations_total{pod="rank"}'
    cluster_with_nodes.wait_until("it is scraped", lambda: bool(prometheus.query(scraped)), 60)

    (sample,) = prometheus.query(scraped)
    wanted = {"namespace": "default", "pod": "rank", "container": "engine", "deployment": "minimal", "role": "main"}
    assert wanted.items() <= sample.labels.items()
    assert sample.labels["group"] == "minimal-main-0"
    assert sample.value == 5
    assert len(prometheus.query('up{pod="rank"}')) == 1
    with pytest.raises(DevclusterError, match=r"refuses 'sum\('"):
        prometheus.query("sum(")


def test_a_monitor_that_would_not_be_translated_whole_is_refused() -> None:
    monitor = {
        "metadata": {"name": "ranks", "namespace": "ns"},
        "spec": {"selector": {"matchLabels": {}}, "podMetricsEndpoints": [{"port": "http", "basicAuth": {}}]},
    }

    with pytest.raises(DevclusterError, match="PodMonitor ranks: devcluster does not translate basicAuth"):
        scrape_configs([monitor], Path("targets.json"))


def test_a_pod_without_an_address_is_no_target() -> None:
    waiting = {**rank_pod(), "status": {"phase": "Pending"}}
    waiting["metadata"]["uid"] = "1"
    running = {**rank_pod(), "status": {"phase": "Running", "podIP": "10.244.1.2"}}
    running["metadata"]["uid"] = "2"

    groups = json.loads(targets_file([waiting, running]))

    assert [group["targets"] for group in groups] == [["10.244.1.2:2222"], ["10.244.1.2:9400"]]
    assert groups[1]["labels"]["__meta_kubernetes_pod_label_serving_lockstep_dev_role"] == "main"
