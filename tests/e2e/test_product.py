"""The product as a user has it: chart by Helm, a deployment by kubectl, ranks as real processes in two pods.

The tests stand in the order of a deployment's life and share it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from devcluster.control.cluster import Cluster
from devcluster.errors import CommandError
from devcluster.product.demo import EXAMPLE
from devcluster.product.lockstep import (
    ANSWER,
    OPERATOR_NAMESPACE,
    QUESTION,
    apply_example,
    ask,
    install,
    pod_monitors,
    service_url,
    wait_for_series,
)
from devcluster.prometheus.server import Prometheus, start_prometheus, stop_prometheus
from support.data.expressions import DASHBOARDS, read_dashboard

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(420), pytest.mark.xdist_group("product")]
SELECTOR = "serving.lockstep.dev/deployment=recall"


@pytest.fixture(scope="module")
def prometheus(cluster_with_nodes: Cluster) -> Iterator[Prometheus]:
    yield start_prometheus(cluster_with_nodes, pod_monitors(cluster_with_nodes))
    stop_prometheus(cluster_with_nodes)


@pytest.fixture(scope="module")
def serving(cluster_with_nodes: Cluster, prometheus: Prometheus) -> Iterator[Cluster]:
    install(cluster_with_nodes)
    apply_example(cluster_with_nodes, EXAMPLE)
    yield cluster_with_nodes


def get(cluster: Cluster, kind: str, *arguments: str) -> list[dict[str, Any]]:
    return list(json.loads(cluster.kubectl("get", kind, "-o", "json", *arguments))["items"])


def deployment(cluster: Cluster) -> dict[str, Any]:
    return dict(json.loads(cluster.kubectl("get", "sdep", "recall", "-o", "json")))


def group_pods(cluster: Cluster) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in get(cluster, "pods", "-l", SELECTOR)}


def wait_until(what: str, condition: Any, timeout_s: float = 180) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.5)


def test_a_completion_through_the_service_is_right(serving: Cluster) -> None:
    assert ask(serving, service_url(serving, "default", "recall"), QUESTION) == ANSWER


def test_kubectl_get_shows_what_a_person_wants_to_know(serving: Cluster) -> None:
    header, row = serving.kubectl("get", "sdep", "recall").splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "GROUPS", "UP-TO-DATE", "MODEL", "AGE"]
    assert row.split()[:2] == ["recall", "True"]
    assert "1/1" in row.split()


def test_prometheus_holds_the_three_answers(serving: Cluster, prometheus: Prometheus) -> None:
    assert all(value > 0 for value in wait_for_series(prometheus).values())


def test_every_dashboard_expression_returns_data(serving: Cluster, prometheus: Prometheus) -> None:
    url = service_url(serving, "default", "recall")
    wait_for_series(prometheus)

    def silent() -> list[str]:
        ask(serving, url, QUESTION)
        return [
            f"{expression.where}: {expression.text}"
            for dashboard in DASHBOARDS
            for expression in read_dashboard(dashboard)
            if not prometheus.query(expression.text)
        ]

    deadline = time.monotonic() + 60
    while (missing := silent()) and time.monotonic() < deadline:
        time.sleep(2)
    assert missing == []


def test_an_invalid_spec_is_refused_at_admission_with_the_field_named(serving: Cluster) -> None:
    bad = yaml.safe_load(EXAMPLE.read_text())
    bad["metadata"]["name"] = "bad"
    bad["spec"]["roles"][0]["parallelism"]["tensor"] = 0
    with pytest.raises(CommandError, match=r"spec\.roles\[0\]\.parallelism\.tensor"):
        serving.kubectl("apply", "-f", "-", input=yaml.safe_dump(bad))


def test_steady_state_and_a_restart_of_the_operator_write_nothing(serving: Cluster) -> None:
    def versions() -> dict[str, str]:
        items = get(serving, "sdep,mpijobs,services,pods", "-l", SELECTOR) + [deployment(serving)]
        return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"] for item in items}

    before = versions()
    serving.kubectl("delete", "pod", "-n", OPERATOR_NAMESPACE, "--all")
    serving.kubectl("rollout", "status", "deployment", "-n", OPERATOR_NAMESPACE, "--timeout=120s")
    time.sleep(10)

    assert versions() == before


def test_deleting_the_worker_pod_leads_to_exactly_one_new_group_that_answers_rightly(serving: Cluster) -> None:
    old_job = [job["metadata"]["name"] for job in get(serving, "mpijobs", "-l", SELECTOR)]
    old_pods = group_pods(serving)
    worker = next(name for name in old_pods if name.endswith("-worker-0"))
    seen: dict[str, str] = {}
    done = threading.Event()

    def record() -> None:
        while not done.wait(0.3):
            seen.update(
                {job["metadata"]["uid"]: job["metadata"]["name"] for job in get(serving, "mpijobs", "-l", SELECTOR)}
            )

    watcher = threading.Thread(target=record)
    watcher.start()
    try:
        serving.kubectl("delete", "pod", worker, "--wait=false")
        wait_until("the deployment notices", lambda: ready(serving) == "False", 60)
        wait_until("a new group is Ready", lambda: ready(serving) == "True", 240)
        time.sleep(3)
    finally:
        done.set()
        watcher.join()

    assert len(seen) == 2, f"one old and one new group, not {seen} (old: {old_job})"
    assert not set(group_pods(serving).values()) & set(old_pods.values())
    assert ask(serving, service_url(serving, "default", "recall"), QUESTION) == ANSWER


def ready(cluster: Cluster) -> str:
    conditions = deployment(cluster)["status"]["conditions"]
    return str(next(condition["status"] for condition in conditions if condition["type"] == "Ready"))


def test_deleting_the_deployment_leaves_no_child(serving: Cluster) -> None:
    serving.kubectl("delete", "sdep", "recall", "--timeout=120s")

    kinds = "sdep,mpijobs,jobs,services,pods,configmaps,secrets,endpointslices"
    left = [
        f"{item['kind']}/{item['metadata']['name']}"
        for item in get(serving, kinds, "-n", "default")
        if item["metadata"]["name"].startswith("recall")
    ]
    wait_until(
        f"the garbage collector: {left}",
        lambda: (
            not [item for item in get(serving, kinds, "-n", "default") if item["metadata"]["name"].startswith("recall")]
        ),
        60,
    )
