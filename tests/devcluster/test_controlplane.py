"""The servers are the real ones: they enforce, create and route as in any cluster."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from devcluster.control.cluster import Cluster
from devcluster.errors import CommandError

pytestmark = pytest.mark.cluster


def pod(name: str, *command: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "any", "command": list(command), **spec.pop("container", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


def service(name: str, app: str, **spec: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": 80, "targetPort": 8000}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"app": app}, "ports": ports, **spec},
    }


def fetch(cluster: Cluster, url: str) -> subprocess.CompletedProcess[str]:
    # The rules and names follow the endpoints within a second; a refusal in between is not what is tested.
    retry = ["--retry", "20", "--retry-all-errors", "--retry-delay", "1", "--max-time", "30"]
    return cluster.run(["curl", "-sS", "--fail", *retry, url], capture_output=True, text=True)


@pytest.fixture(scope="module")
def web(cluster_with_nodes: Cluster) -> Iterator[str]:
    """A pod that serves HTTP on port 8000 behind the Service `web`, and behind the headless Service `peers`."""
    cluster = cluster_with_nodes
    server = ("python3", "-m", "http.server", "8000", "--directory", "/etc/ssl")
    cluster.apply(
        service("web", "web"),
        service("peers", "web", clusterIP="None"),
        pod("web", *server, hostname="web-0", subdomain="peers"),
    )
    cluster.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
    yield cluster.kubectl("get", "pod/web", "-o", "jsonpath={.status.podIP}")
    cluster.kubectl("delete", "pod/web", "service/web", "service/peers", "--grace-period=1")


def test_rbac_refuses_what_no_role_grants(cluster: Cluster, cluster_namespace: str) -> None:
    account = f"--as=system:serviceaccount:{cluster_namespace}:default"

    with pytest.raises(CommandError, match="forbidden"):
        cluster.kubectl("get", "secrets", f"--namespace={cluster_namespace}", account)


def test_an_mpijob_gets_its_pods_config_and_ssh_key(cluster: Cluster, cluster_namespace: str) -> None:
    replica = {"replicas": 1, "template": {"spec": {"containers": [{"name": "main", "image": "any"}]}}}
    job = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "hello", "namespace": cluster_namespace},
        "spec": {"mpiReplicaSpecs": {"Launcher": replica, "Worker": replica}},
    }
    cluster.apply(job)

    for item in ("pod/hello-worker-0", "configmap/hello-config", "secret/hello-ssh", "job/hello-launcher"):
        cluster.kubectl("wait", "--for=create", item, f"--namespace={cluster_namespace}", "--timeout=60s")

    config = json.loads(cluster.kubectl("get", "configmap/hello-config", "-o", "json", "-n", cluster_namespace))
    assert f"hello-worker-0.hello.{cluster_namespace}.svc" in config["data"]["hostfile"]


def test_a_service_address_leads_to_its_pod(cluster_with_nodes: Cluster, web: str) -> None:
    address = cluster_with_nodes.kubectl("get", "service/web", "-o", "jsonpath={.spec.clusterIP}")

    answer = fetch(cluster_with_nodes, f"http://{address}/")

    assert "certs/" in answer.stdout, answer.stderr


def test_a_pod_reaches_itself_through_its_service(cluster_with_nodes: Cluster, web: str) -> None:
    script = "import urllib.request as r; print(r.urlopen('http://web.default.svc', timeout=20).status)"
    log = cluster_with_nodes.state / "pods" / "logs" / "default" / "hairpin" / "main.log"
    # The pod stands behind a Service of its own and asks for it by name.
    serve = 'cd /etc/ssl; python3 -m http.server 8000 & sleep 2; exec python3 -c "$SCRIPT"'
    env = {"env": [{"name": "SCRIPT", "value": script.replace("web.", "hairpin.")}]}
    cluster_with_nodes.apply(service("hairpin", "hairpin"), pod("hairpin", "sh", "-c", serve, container=env))

    cluster_with_nodes.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/hairpin", "--timeout=60s")

    assert "200" in log.read_text()
    cluster_with_nodes.kubectl("delete", "pod/hairpin", "service/hairpin", "--grace-period=1")


@pytest.mark.parametrize("name", ["peers.default.svc.cluster.local", "web-0.peers.default.svc", "web-0.peers.default"])
def test_a_headless_service_and_its_hosts_resolve_to_the_pod(cluster_with_nodes: Cluster, web: str, name: str) -> None:
    assert fetch(cluster_with_nodes, f"http://{name}:8000/").returncode == 0

    answer = cluster_with_nodes.run(["getent", "ahostsv4", name], capture_output=True, text=True)

    assert {line.split()[0] for line in answer.stdout.splitlines()} == {web}


def test_an_unknown_name_fails_at_once(cluster_with_nodes: Cluster, web: str) -> None:
    answer = cluster_with_nodes.run(["getent", "hosts", "nobody.default.svc.cluster.local"], timeout=10)

    assert answer.returncode == 2


@pytest.mark.parametrize(("publish", "answers"), [(True, 0), (False, 2)])
def test_addresses_of_pods_that_are_not_ready_are_published_on_demand_only(
    cluster_with_nodes: Cluster, publish: bool, answers: int
) -> None:
    cluster, name = cluster_with_nodes, f"unready-{publish}".lower()
    probe = {"readinessProbe": {"exec": {"command": ["false"]}, "periodSeconds": 1}}
    headless = service(name, name, clusterIP="None", publishNotReadyAddresses=publish)
    cluster.apply(headless, pod(name, "sleep", "1000", container=probe))
    cluster.kubectl("wait", "--for=jsonpath={.status.podIP}", f"pod/{name}", "--timeout=60s")
    path = f"jsonpath={{.items[?(@.metadata.generateName=='{name}-')].endpoints[*].addresses}}"
    cluster.wait_until("the endpoint is known", lambda: cluster.kubectl("get", "endpointslices", "-o", path) != "", 30)

    lookup = ["getent", "hosts", f"{name}.default.svc.cluster.local"]
    if publish:
        cluster.wait_until("DNS knows it", lambda: cluster.run(lookup).returncode == 0, 30)

    assert cluster.run(lookup).returncode == answers
    cluster.kubectl("delete", f"pod/{name}", f"service/{name}", "--grace-period=1")


def test_there_is_no_way_out_of_the_cluster(cluster_with_nodes: Cluster) -> None:
    routes = cluster_with_nodes.run(["ip", "route", "show", "default"], capture_output=True, text=True)
    assert routes.stdout == ""

    script = "import socket; socket.create_connection(('203.0.113.7', 80), timeout=10)"
    answer = cluster_with_nodes.run(["python3", "-c", script], capture_output=True, text=True, timeout=5)

    assert "Network is unreachable" in answer.stderr


def test_clusters_side_by_side_do_not_see_each_other(
    cluster: Cluster, cluster_namespace: str, cluster_with_nodes: Cluster
) -> None:
    assert cluster_namespace in cluster.kubectl("get", "namespaces", "-o", "name")
    assert cluster_namespace not in cluster_with_nodes.kubectl("get", "namespaces", "-o", "name")
    assert cluster.kubectl("get", "nodes", "-o", "name") == ""
