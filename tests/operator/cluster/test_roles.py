"""Two roles of different revisions beside real servers and the real mpi-operator; the test plays the kubelet."""

import pytest

from devcluster.control.cluster import Cluster
from devcluster.errors import CommandError
from lockstep_operator.children.service import SERVICE
from lockstep_operator.clients.kube import Kube
from lockstep_operator.kinds import DEPLOYMENTS, PODS, Object
from support.cluster.deployments import NAME, Live, build_two_roles
from support.cluster.operator_process import OperatorProcess, wait_for

pytestmark = pytest.mark.cluster


def list_jobs(live: Live, role: str) -> set[str]:
    """UIDs of a role's MPIJobs."""
    jobs = live.list_jobs()
    return {uid for uid, job in jobs.items() if job["metadata"]["labels"]["serving.lockstep.dev/role"] == role}


def find_role(live: Live, name: str) -> Object:
    return next(role for role in live.read()["status"]["roles"] if role["name"] == name)


def test_two_roles_of_different_revisions_both_become_ready(live: Live, operator: OperatorProcess) -> None:
    live.bring_up(replicas=1, roles=build_two_roles(replicas=2))
    status = live.read()["status"]
    main, second = status["roles"]
    assert main["revision"] != second["revision"]
    assert [(role["readyReplicas"], role["updatedReplicas"]) for role in (main, second)] == [(1, 1), (2, 2)]
    assert (status["readyGroups"], status["phase"], status["nodes"]) == ("3/3", "Ready", 6)
    ready = live.find_condition("Ready")
    assert ready["message"] == "role main: 1 of 1 groups are ready; role second: 2 of 2 groups are ready"
    assert operator.read_metric("lockstep_operator_groups", namespace=live.namespace, state="Ready") == 3


def test_each_roles_service_selects_its_own_launchers(live: Live) -> None:
    live.bring_up(replicas=1, roles=build_two_roles(replicas=2))
    for role, wanted in (("main", 1), ("second", 2)):
        selector = live.kube.get(SERVICE.kind, live.namespace, f"{NAME}-{role}")["spec"]["selector"]
        words = ",".join(f"{key}={value}" for key, value in selector.items())
        assert len(live.kube.list(PODS, live.namespace, words)) == wanted
        assert find_role(live, role)["url"] == f"http://{NAME}-{role}.{live.namespace}.svc:8000"


def test_a_change_of_one_role_replaces_no_group_of_the_other(live: Live) -> None:
    live.bring_up(roles=build_two_roles())
    main, second = list_jobs(live, "main"), list_jobs(live, "second")
    live.patch(roles=build_two_roles(engine={"maxBatchSize": 16}))
    live.wait_ready()
    assert list_jobs(live, "main") == main
    assert not list_jobs(live, "second") & second


def test_a_broken_role_is_told_and_repaired_while_the_other_serves(live: Live) -> None:
    live.bring_up(roles=build_two_roles(), restartPolicy={"backoffSeconds": 3})
    main = list_jobs(live, "main")
    broken = next(group["name"] for group in live.read()["status"]["groups"] if group["role"] == "second")
    (launcher,) = live.kubelet.list_pods("launcher", broken)
    live.kubelet.end(launcher, 1)
    condition = live.wait_condition("Degraded", "True", "GroupBroken")
    assert broken in condition["message"]
    assert find_role(live, "main")["readyReplicas"] == 1
    available = live.find_condition("Available")
    assert available["message"] == "role second: 0 groups are ready, 1 are needed"
    live.wait_ready()
    assert list_jobs(live, "main") == main


def test_scale_sets_and_shows_the_role_that_sets_no_number_of_its_own(live: Live, cluster: Cluster) -> None:
    live.bring_up(replicas=1, roles=build_two_roles(replicas=2))
    second = list_jobs(live, "second")
    scale = live.kube.call("GET", DEPLOYMENTS.build_path(live.namespace, NAME, "scale"))
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (1, 1)
    (pod,) = live.kube.list(PODS, live.namespace, scale["status"]["selector"])
    assert pod["metadata"]["labels"]["serving.lockstep.dev/role"] == "main"
    command = ("scale", "servingdeployment", NAME, "-n", live.namespace)
    cluster.kubectl(*command, "--replicas=2")
    live.wait_ready()
    assert len(list_jobs(live, "main")) == 2
    assert list_jobs(live, "second") == second
    cluster.kubectl(*command, "--replicas=0")
    wait_for("the scaled role is empty", lambda: not list_jobs(live, "main"))
    live.wait_ready()
    assert live.read()["status"]["phase"] == "Ready"
    with pytest.raises(CommandError, match="at most 64 groups of all roles together"):
        cluster.kubectl(*command, "--replicas=63")


def test_a_role_that_leaves_the_spec_leaves_nothing(live: Live, kube: Kube) -> None:
    live.bring_up(roles=build_two_roles())
    main = list_jobs(live, "main")
    live.patch(roles=build_two_roles()[:1])
    wait_for("its groups are gone", lambda: not list_jobs(live, "second"))
    assert list_jobs(live, "main") == main
    wait_for("its Service is gone", lambda: kube.find(SERVICE.kind, live.namespace, f"{NAME}-second") is None)
