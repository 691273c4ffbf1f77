"""A real Prometheus in the cluster; it labels pods as the chart's PodMonitors do where prometheus-operator runs."""

import json
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from devcluster.control.cluster import Cluster
from devcluster.control.servers import ServerPlan
from devcluster.errors import DevclusterError
from devcluster.kube.objects import Object
from devcluster.network.addresses import API_IP
from devcluster.prometheus.monitors import scrape_configs

PORT = 9090


@dataclass(frozen=True)
class Sample:
    """One series of an answer, at one time."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Prometheus:
    """A running server; `url` is on the host's loopback."""

    url: str

    def query(self, expression: str) -> list[Sample]:
        """The instant vector that an expression gives now.

        Raises:
            DevclusterError: Prometheus refuses the expression.
        """
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the host's proxy knows nothing of this
        try:
            with opener.open(address, timeout=10) as response:
                result = json.load(response)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise DevclusterError(f"Prometheus refuses {expression!r}: {error.read().decode()}") from error
        return [Sample(item["metric"], float(item["value"][1])) for item in result]


def start_prometheus(cluster: Cluster, pod_monitors: Iterable[Object], scrape_interval_s: int = 2) -> Prometheus:
    """Starts Prometheus in the cluster, with rights to see pods and nothing else, and opens a way to it from the host.

    Args:
        cluster: a running cluster with nodes.
        pod_monitors: PodMonitor objects, as the chart renders them; done is what prometheus-operator would do.
        scrape_interval_s: in seconds, in place of the monitors' own.
    """
    cluster.apply(*_rights())
    targets = cluster.state / "prometheus-targets.json"
    config = cluster.state / "prometheus.yaml"
    jobs = scrape_configs(pod_monitors, targets)
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": f"{scrape_interval_s}s"}, "scrape_configs": jobs}))
    discovery = [sys.executable, "-m", "devcluster.prometheus.discovery", f"--targets={targets}"]
    discovery.append(f"--kubeconfig={cluster.pki.kubeconfig('prometheus')}")
    cluster.start_server(ServerPlan("discovery", discovery, None))
    argv = [
        cluster.tools["prometheus"],
        f"--config.file={config}",
        f"--storage.tsdb.path={cluster.state / 'prometheus'}",
        "--storage.tsdb.retention.time=1d",
        f"--web.listen-address={API_IP}:{PORT}",
        "--log.level=warn",
    ]
    cluster.start_server(ServerPlan("prometheus", argv, f"http://{API_IP}:{PORT}/-/ready"))
    return Prometheus(f"http://127.0.0.1:{cluster.forward('prometheus', API_IP, PORT)}")


def stop_prometheus(cluster: Cluster) -> None:
    """Ends the cluster's Prometheus and forgets its data, so that another one starts from nothing."""
    for name in ("forward-prometheus", "prometheus", "discovery"):
        cluster.servers.stop(name)
    shutil.rmtree(cluster.state / "prometheus")


def _rights() -> list[dict[str, Any]]:
    rbac, name = "rbac.authorization.k8s.io", {"name": "prometheus"}
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    role = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": name, "rules": [rule]}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": name,
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "prometheus"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": "prometheus"}],
    }
    return [role, binding]
