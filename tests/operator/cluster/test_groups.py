"""Groups that break, change and end, beside real servers and the real mpi-operator; the test plays the kubelet."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.control.cluster import Cluster
from lockstep_operator.children.mpijob import MPIJOB
from lockstep_operator.children.service import SERVICE
from lockstep_operator.kinds import EVENTS, PODS, Object
from lockstep_worker.contract import EXIT_HANG
from support.cluster.deployments import Live
from support.cluster.operator_process import OperatorProcess, wait_for

pytestmark = pytest.mark.cluster
TESTS = Path(__file__).resolve().parents[2]
DRAIN_SERVER = "support.cluster.drain_server"


def wait_replaced(live: Live, old: str) -> Object:
    """Wait until the group of that UID is gone and a new one is ready; return the group's entry."""

    def ask() -> Object | None:
        live.kubelet.run_pods()
        jobs = live.list_jobs()
        return live.read()["status"]["groups"][0] if old not in jobs and jobs and live.is_ready() else None

    return wait_for("the group was replaced and is ready", ask)


def test_a_deleted_worker_pod_leads_to_exactly_one_new_group(live: Live, operator: OperatorProcess) -> None:
    live.bring_up()
    (old,) = live.list_jobs()
    seen = {old}
    (worker,) = live.kubelet.list_pods("worker")
    live.kube.delete(PODS, live.namespace, worker["metadata"]["name"], worker["metadata"]["uid"])

    def ask() -> Object | None:
        live.kubelet.run_pods()
        jobs = live.list_jobs()
        seen.update(jobs)
        return live.read()["status"]["groups"][0] if old not in jobs and jobs and live.is_ready() else None

    entry = wait_for("the group was replaced and is ready", ask)
    time.sleep(3)
    seen.update(live.list_jobs())
    assert len(seen) == 2
    assert entry["restarts"] == 1
    assert entry["lastFailure"]["reason"] in {"PodDeleted", "WorkerReplaced", "WorkerLost"}
    metric = "lockstep_operator_group_restarts_total"
    assert operator.read_metric(metric, namespace=live.namespace) == 1


def test_a_launchers_last_words_stand_in_the_status_and_in_an_event(live: Live) -> None:
    live.bring_up()
    (old,) = live.list_jobs()
    (launcher,) = live.kubelet.list_pods("launcher")
    said = {"reason": "Hang", "exitCode": EXIT_HANG, "rank": 1, "message": "rank 1 stands in exchange"}
    live.kubelet.end(launcher, EXIT_HANG, said)
    failure = wait_replaced(live, old)["lastFailure"]
    assert {key: failure[key] for key in ("reason", "exitCode", "rank", "message", "uid")} == {
        "reason": "Hang",
        "exitCode": EXIT_HANG,
        "rank": 1,
        "message": "rank 1 stands in exchange",
        "uid": old,
    }
    events = [item for item in live.kube.list(EVENTS, live.namespace) if item["reason"] == "Hang"]
    assert len(events) == 1
    assert "rank 1 stands in exchange" in events[0]["note"]


def test_a_launcher_that_ends_well_is_a_failure_too(live: Live) -> None:
    live.bring_up()
    (old,) = live.list_jobs()
    (launcher,) = live.kubelet.list_pods("launcher")
    live.kubelet.end(launcher, 0)
    assert wait_replaced(live, old)["lastFailure"]["reason"] == "LauncherExited"


def test_a_group_that_keeps_breaking_uses_up_its_budget(live: Live) -> None:
    live.bring_up(restartPolicy={"backoffSeconds": 0, "maxRestarts": 1})
    for _ in range(2):
        live.wait_ready()
        (launcher,) = live.kubelet.list_pods("launcher")
        live.kubelet.end(launcher, 1)
        wait_for("the failure is noticed", lambda: not live.is_ready())
    condition = live.wait_condition("Degraded", "True", "RestartBudgetExceeded")
    assert "2 failures within 3600 s" in condition["message"]
    wait_for("the broken group is gone", lambda: not live.list_jobs())
    time.sleep(3)
    assert not live.list_jobs()
    live.patch(image="lockstep-worker:fixed")
    live.wait_ready()
    assert live.find_condition("Degraded")["status"] == "False"


def test_a_change_replaces_ready_groups_one_after_the_other(live: Live) -> None:
    live.bring_up(replicas=2)
    old = set(live.list_jobs())
    before = live.read()["status"]["revision"]
    live.patch(image="lockstep-worker:next")
    lowest = 2

    def ask() -> bool:
        nonlocal lowest
        lowest = min(lowest, live.read()["status"]["readyReplicas"])
        live.kubelet.run_pods()
        return live.is_ready() and not old & set(live.list_jobs())

    wait_for("both groups are replaced", ask)
    assert lowest >= 1
    assert live.read()["status"]["revision"] != before
    assert live.read()["status"]["updatedReplicas"] == 2


def test_a_paused_deployment_is_left_as_it_is(live: Live) -> None:
    live.bring_up()
    jobs = set(live.list_jobs())
    live.patch(paused=True, image="lockstep-worker:next")
    live.wait_condition("Progressing", "False", "Paused")
    time.sleep(2)
    assert set(live.list_jobs()) == jobs
    live.patch(paused=False)
    live.wait_ready()
    assert not jobs & set(live.list_jobs())


def test_deletion_leaves_no_child(live: Live) -> None:
    live.bring_up(replicas=2)
    live.delete()
    live.wait_gone()
    assert live.kubelet.list_pods() == []
    for child in (MPIJOB, SERVICE):
        assert live.kube.list(child.kind, live.namespace) == []


def test_a_namespace_with_a_deployment_can_be_deleted(live: Live, cluster: Cluster) -> None:
    live.bring_up()
    cluster.kubectl("delete", "namespace", live.namespace, "--timeout=60s")
    cluster.kubectl("create", "namespace", live.namespace)


@pytest.fixture
def in_flight(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """A launcher's drain endpoint; the file says how many requests are in flight."""
    state = tmp_path / "in_flight"
    state.write_text("2")
    argv = [sys.executable, "-m", DRAIN_SERVER, str(state)]
    process = cluster.popen(argv, cwd=TESTS, stderr=subprocess.DEVNULL)
    yield state
    process.kill()
    process.wait()


def test_a_group_finishes_its_requests_before_it_ends(live: Live, in_flight: Path) -> None:
    live.bring_up(drainTimeoutSeconds=600)
    live.delete()
    wait_for("the launcher is told to drain", in_flight.with_name("asked").exists)
    (launcher,) = live.kubelet.list_pods("launcher")
    assert launcher["metadata"]["labels"]["serving.lockstep.dev/serving"] == "false"
    assert live.kube.find(SERVICE.kind, live.namespace, "recall-main") is None
    time.sleep(3)
    assert len(live.list_jobs()) == 1
    in_flight.write_text("0")
    live.wait_gone()


def test_an_operator_restart_in_the_midst_of_a_drain_loses_nothing(
    live: Live, in_flight: Path, operator: OperatorProcess
) -> None:
    live.bring_up(drainTimeoutSeconds=600)
    live.delete()
    wait_for("the launcher is told to drain", in_flight.with_name("asked").exists)
    (launcher,) = live.kubelet.list_pods("launcher")
    operator.restart()
    time.sleep(2)
    (again,) = live.kubelet.list_pods("launcher")
    for part in ("uid", "labels", "annotations"):
        assert again["metadata"][part] == launcher["metadata"][part]
    in_flight.write_text("0")
    live.wait_gone()
