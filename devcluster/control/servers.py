"""The command lines and configuration files of the control plane's servers: pure, nothing is started here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from devcluster.control.pki import Pki
from devcluster.network.addresses import API_IP, POD_CIDR, SERVICE_CIDR
from devcluster.programs.tools import Tools

ETCD_PORT = 2379
CONTROLLER_MANAGER_PORT = 10257
SCHEDULER_PORT = 10259
PROXY_HEALTH_PORT = 10256
MPI_NAMESPACE = "mpi-operator"


@dataclass(frozen=True)
class ServerPlan:
    """What to run, and how to tell that it is ready: an HTTP(S) address that answers 200, or none."""

    name: str
    argv: list[str]
    health_url: str | None


def etcd(tools: Tools, state: Path) -> ServerPlan:
    """The store; it does not sync to disk, for a cluster of this kind is thrown away after a crash."""
    client, peer = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PORT + 1}"
    argv = [
        tools["etcd"],
        f"--data-dir={state / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=warn",
    ]
    return ServerPlan("etcd", argv, f"{client}/health")


def api_server(tools: Tools, pki: Pki) -> ServerPlan:
    """The API server, with RBAC; its default reconciler gives the `kubernetes` Service its endpoint."""
    argv = [
        tools["kube-apiserver"],
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        "--bind-address=0.0.0.0",
        f"--secure-port={pki.api_port}",
        f"--advertise-address={API_IP}",
        f"--tls-cert-file={pki.file('apiserver.crt')}",
        f"--tls-private-key-file={pki.file('apiserver.key')}",
        f"--client-ca-file={pki.file('ca.crt')}",
        f"--requestheader-client-ca-file={pki.file('ca.crt')}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki.file('sa.key')}",
        f"--service-account-signing-key-file={pki.file('sa.key')}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        "--profiling=false",
    ]
    return ServerPlan("kube-apiserver", argv, f"https://127.0.0.1:{pki.api_port}/readyz")


def controller_manager(tools: Tools, pki: Pki) -> ServerPlan:
    """All controllers; a high request rate, else the default ServiceAccount of a new namespace takes seconds."""
    argv = [
        tools["kube-controller-manager"],
        *_client_flags(pki, "kube-controller-manager"),
        "--bind-address=127.0.0.1",
        f"--secure-port={CONTROLLER_MANAGER_PORT}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki.file('sa.key')}",
        f"--root-ca-file={pki.file('ca.crt')}",
        "--controllers=*",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]
    return ServerPlan("kube-controller-manager", argv, f"https://127.0.0.1:{CONTROLLER_MANAGER_PORT}/healthz")


def scheduler(tools: Tools, pki: Pki, state: Path) -> ServerPlan:
    """The scheduler; it tries a pod that did not fit again after a second."""
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(pki.kubeconfig("kube-scheduler")), "qps": 500, "burst": 1000},
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
    }
    argv = [
        tools["kube-scheduler"],
        f"--config={_config_file(state, 'kube-scheduler', config)}",
        *_client_flags(pki, "kube-scheduler")[1:],
        "--bind-address=127.0.0.1",
        f"--secure-port={SCHEDULER_PORT}",
    ]
    return ServerPlan("kube-scheduler", argv, f"https://127.0.0.1:{SCHEDULER_PORT}/healthz")


def proxy(tools: Tools, pki: Pki, state: Path, node_name: str) -> ServerPlan:
    """One kube-proxy for the whole namespace: its rules sit on the only way between any two pods.

    All Service traffic is masqueraded: a pod that reaches itself or a neighbour through a Service must get the answer
    back on the same way.
    """
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "bindAddress": API_IP,
        "hostnameOverride": node_name,
        "clusterCIDR": POD_CIDR,
        "clientConnection": {"kubeconfig": str(pki.kubeconfig("kube-proxy")), "qps": 100, "burst": 200},
        "nftables": {"masqueradeAll": True, "syncPeriod": "30s", "minSyncPeriod": "100ms"},
        # These are settings of the whole machine; its conntrack table is not this cluster's to size.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": f"127.0.0.1:{PROXY_HEALTH_PORT}",
        "metricsBindAddress": "127.0.0.1:10249",
    }
    argv = [tools["kube-proxy"], f"--config={_config_file(state, 'kube-proxy', config)}"]
    return ServerPlan("kube-proxy", argv, f"http://127.0.0.1:{PROXY_HEALTH_PORT}/healthz")


def mpi_operator(tools: Tools, pki: Pki) -> ServerPlan:
    """Kubeflow's mpi-operator; at its default request rate of 5 a second it would set the pace of every test."""
    argv = [
        tools["mpi-operator"],
        f"--kubeConfig={pki.kubeconfig('mpi-operator')}",
        f"--lock-namespace={MPI_NAMESPACE}",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--controller-queue-rate-limit=200",
        "--controller-queue-burst=400",
    ]
    return ServerPlan("mpi-operator", argv, "http://127.0.0.1:8080/healthz")


def mpi_operator_objects(manifests: Path) -> list[dict[str, Any]]:
    """The CRD and RBAC that mpi-operator publishes; without its Deployment, for it runs as a process."""
    namespace: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MPI_NAMESPACE}}
    objects = [namespace]
    for name in ("kubeflow.org_mpijobs", "service-account", "cluster-role", "cluster-role-binding"):
        with (manifests / f"{name}.yaml").open() as stream:
            objects.extend(document for document in yaml.safe_load_all(stream) if document)
    for item in objects:
        if item["kind"] == "ServiceAccount":
            item["metadata"]["namespace"] = MPI_NAMESPACE
        for subject in item.get("subjects", []):
            subject["namespace"] = MPI_NAMESPACE
    return objects


def _client_flags(pki: Pki, name: str) -> list[str]:
    path = pki.kubeconfig(name)
    return [f"--kubeconfig={path}", f"--authentication-kubeconfig={path}", f"--authorization-kubeconfig={path}"]


def _config_file(state: Path, name: str, config: dict[str, Any]) -> Path:
    path = state / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path
