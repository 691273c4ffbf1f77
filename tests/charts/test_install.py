"""Real helm against a real control plane: install, upgrade, uninstall, and what the API server makes of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.control.cluster import Cluster
from devcluster.errors import CommandError
from support.cluster.cluster import StartCluster, start_cluster  # noqa: F401
from support.cluster.helm import CHART, render

pytestmark = pytest.mark.cluster
CRD = "servingdeployments.serving.lockstep.dev"
PART = "app.kubernetes.io/part-of=lockstep"
TAKE_CRD = ("--take-ownership",)
"""An earlier test may have left the CRD."""
WITHOUT_CRD = ("--set", "crds.install=false")
DEPLOYMENT = {
    "apiVersion": "serving.lockstep.dev/v1alpha1",
    "kind": "ServingDeployment",
    "metadata": {"name": "recall", "namespace": "default"},
    "spec": {
        "model": {"source": "/opt/lockstep/models/recall", "servedName": "recall"},
        "image": "x:y",
        "roles": [{"name": "main"}],
    },
}


@pytest.fixture(scope="module")
def cluster(start_cluster: StartCluster) -> Cluster:  # noqa: F811
    """A control plane of its own: the tests put CRDs in and take them out."""
    return start_cluster("charts")


def install(cluster: Cluster, release: str, *arguments: str, chart: Path = CHART) -> str:
    return cluster.helm("install", release, str(chart), "-n", release, "--create-namespace", *arguments)


def names(cluster: Cluster, *arguments: str) -> set[str]:
    return set(cluster.kubectl("get", *arguments, "-o", "name", "--ignore-not-found").split())


def read_fields(cluster: Cluster) -> set[str]:
    """Fields of a ServingDeployment's spec that the API server knows."""
    crd = json.loads(cluster.kubectl("get", f"crd/{CRD}", "-o", "json"))
    return set(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])


def may(cluster: Cluster, account: str, verb: str, resource: str, *arguments: str) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{account}",
            "resourceAttributes": {
                "verb": verb,
                "resource": resource.partition(".")[0],
                "group": resource.partition(".")[2],
                "namespace": arguments[0] if arguments else "",
            },
        },
    }
    answer = cluster.kubectl("create", "-f", "-", "-o", "json", input=json.dumps(review))
    return bool(json.loads(answer)["status"]["allowed"])


def any_crd(group: str, plural: str, kind: str) -> dict[str, Any]:
    """A CRD that takes any object, as a stand-in for the presence of an API."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def earlier_chart(folder: Path) -> Path:
    """The chart as it was before the field `spec.paused` came."""
    chart = Path(shutil.copytree(CHART, folder / "lockstep"))
    path = chart / "files" / "crd-servingdeployments.yaml"
    crd = yaml.safe_load(path.read_text())
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["paused"]
    path.write_text(yaml.safe_dump(crd))
    return chart


def test_the_chart_installs_upgrades_and_leaves_the_users_objects_when_it_goes(
    cluster: Cluster, tmp_path: Path
) -> None:
    arguments = (*TAKE_CRD, "--set", "image.repository=lockstep-operator")
    text = install(cluster, "lockstep", *arguments, chart=earlier_chart(tmp_path))
    assert "rollout status deployment/lockstep-operator" in text
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=30s")
    cluster.apply(DEPLOYMENT)
    assert "paused" not in read_fields(cluster)

    cluster.helm("upgrade", "lockstep", str(CHART), "-n", "lockstep", "--reuse-values", "--set", "image.tag=next")
    where = "jsonpath={.spec.template.spec.containers[0].image}"
    assert cluster.kubectl("get", "-n", "lockstep", "deploy/lockstep-operator", "-o", where) == "lockstep-operator:next"
    assert "paused" in read_fields(cluster)

    cluster.helm("uninstall", "lockstep", "-n", "lockstep", "--wait")
    assert not names(cluster, "-n", "lockstep", "deployments,serviceaccounts", "-l", PART)
    assert not names(cluster, "clusterroles,clusterrolebindings", "-l", f"{PART},app.kubernetes.io/instance=lockstep")
    assert names(cluster, f"crd/{CRD}")
    assert names(cluster, "servingdeployments", "-n", "default") == {"servingdeployment.serving.lockstep.dev/recall"}


def test_a_new_release_finds_the_crd_that_an_earlier_one_left(cluster: Cluster) -> None:
    install(cluster, "lockstep", *TAKE_CRD)
    cluster.helm("uninstall", "lockstep", "-n", "lockstep", "--wait")
    with pytest.raises(CommandError, match="invalid ownership metadata"):
        install(cluster, "other")
    install(cluster, "another", *TAKE_CRD)
    cluster.helm("uninstall", "another", "-n", "another", "--wait")


def test_the_operators_pod_is_admitted_where_only_restricted_pods_are(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "restricted")
    cluster.kubectl("label", "namespace", "restricted", "pod-security.kubernetes.io/enforce=restricted")
    install(cluster, "restricted", *WITHOUT_CRD)
    cluster.kubectl("wait", "-n", "restricted", "--for=create", "pod", "-l", PART)


def test_the_cluster_wide_account_may_do_its_work_and_not_more(cluster: Cluster) -> None:
    install(cluster, "wide", *WITHOUT_CRD)
    account = "wide:wide-lockstep-operator"
    assert may(cluster, account, "create", "mpijobs.kubeflow.org", "default")
    assert may(cluster, account, "watch", "pods")
    assert may(cluster, account, "list", "customresourcedefinitions.apiextensions.k8s.io")
    assert not may(cluster, account, "get", "secrets", "default")
    assert not may(cluster, account, "delete", "pods", "default")
    assert not may(cluster, account, "create", "servingdeployments.serving.lockstep.dev", "default")


def test_a_namespaced_account_has_no_rights_elsewhere(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "team-a")
    install(cluster, "narrow", *WITHOUT_CRD, "--set", "watchNamespaces={team-a}")
    account = "narrow:narrow-lockstep-operator"
    assert may(cluster, account, "create", "mpijobs.kubeflow.org", "team-a")
    assert not may(cluster, account, "get", "mpijobs.kubeflow.org", "default")
    assert not may(cluster, account, "get", "mpijobs.kubeflow.org", "narrow")
    assert not may(cluster, account, "watch", "pods")


def test_monitoring_objects_appear_once_the_prometheus_operator_is_there(cluster: Cluster) -> None:
    group = "monitoring.coreos.com"
    text = install(cluster, "seen", *WITHOUT_CRD)
    assert f"[ ] Prometheus operator, {group}/v1" in text

    cluster.apply(any_crd(group, "podmonitors", "PodMonitor"), any_crd(group, "prometheusrules", "PrometheusRule"))
    for plural in ("podmonitors", "prometheusrules"):
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{plural}.{group}", "--timeout=30s")
    text = cluster.helm("upgrade", "seen", str(CHART), "-n", "seen", *WITHOUT_CRD)
    assert f"[x] Prometheus operator, {group}/v1" in text
    assert names(cluster, "-n", "seen", "podmonitors,prometheusrules") == {
        f"podmonitor.{group}/seen-lockstep-ranks",
        f"podmonitor.{group}/seen-lockstep-operator",
        f"prometheusrule.{group}/seen-lockstep",
    }


def test_the_chart_installs_before_and_after_the_mpi_operator(cluster: Cluster) -> None:
    assert "[x] MPIJob, kubeflow.org/v2beta1" in install(cluster, "after", *WITHOUT_CRD)
    crd = yaml.safe_load(cluster.kubectl("get", "crd", "mpijobs.kubeflow.org", "-o", "yaml"))
    cluster.kubectl("delete", "crd", "mpijobs.kubeflow.org", "--wait")
    try:
        text = install(cluster, "before", *WITHOUT_CRD)
    finally:
        kept = {"name": crd["metadata"]["name"], "annotations": crd["metadata"].get("annotations", {})}
        cluster.apply({**crd, "metadata": kept, "status": None})
    assert "[ ] MPIJob, kubeflow.org/v2beta1: no group can start without it" in text


def test_the_api_server_knows_every_field_that_the_chart_sets(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "lockstep-system")
    text = "\n---\n".join(json.dumps(one) for one in render(release="dry"))
    arguments = ("--dry-run=server", "--validate=strict", "--force-conflicts")
    cluster.kubectl("apply", "--server-side", *arguments, "-f", "-", input=text)
