"""Lockstep in a devcluster: installs the chart by Helm and asks a deployment a question, as a user would."""

import contextlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

from devcluster.control.cluster import Cluster
from devcluster.errors import CommandError, DevclusterError
from devcluster.kube.objects import Object
from devcluster.nodes.images import OPERATOR_IMAGE
from devcluster.paths import ROOT
from devcluster.progress import Progress, silent
from devcluster.prometheus.server import Prometheus

CHART = ROOT / "charts" / "lockstep"
RELEASE = "lockstep"
OPERATOR_NAMESPACE = "lockstep-system"
OPERATOR = f"deployment/{RELEASE}-operator"
QUESTION = "k=4217 Q=0731 m=5566 ? Q k"
ANSWER = "Q=0731 k=4217"
"""What the small trained model was taught to answer: the two values that were asked for."""

REPORT_EVERY_S = 2.0

SERIES = (
    "lockstep_iteration_bubble_seconds_count",
    'lockstep_collectives_total{outcome="skipped"}',
    'lockstep_hang_detector_paused_seconds_total{reason="idle"}',
)
"""The three answers that Lockstep is for: the bubble, what was not exchanged, and idling that is no hang."""


def install(cluster: Cluster, timeout_s: int = 120) -> None:
    """Installs the chart with the cluster's own operator image and waits until the operator is ready."""
    repository, tag = OPERATOR_IMAGE.rsplit(":", 1)
    arguments = ["install", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE, "--create-namespace"]
    cluster.helm(*arguments, "--set", f"image.repository={repository}", "--set", f"image.tag={tag}")
    cluster.kubectl("rollout", "status", OPERATOR, "-n", OPERATOR_NAMESPACE, f"--timeout={timeout_s}s")


def pod_monitors(cluster: Cluster) -> list[Object]:
    """The chart's PodMonitors, as it renders them where the Prometheus operator's kinds are served."""
    arguments = ["template", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE]
    text = cluster.helm(*arguments, "--api-versions", "monitoring.coreos.com/v1")
    return [item for item in yaml.safe_load_all(text) if item and item["kind"] == "PodMonitor"]


def apply_example(
    cluster: Cluster, manifest: Path, progress: Progress = silent, timeout_s: int = 300
) -> tuple[str, str]:
    """Applies a ServingDeployment from a file and waits until it is Ready; reports each new reason why it is not.

    Returns:
        Its namespace and name.
    """
    with manifest.open() as stream:
        metadata = next(item for item in yaml.safe_load_all(stream) if item["kind"] == "ServingDeployment")["metadata"]
    namespace, name = metadata.get("namespace", "default"), metadata["name"]
    cluster.kubectl("apply", "-f", str(manifest))
    _wait_ready(cluster, namespace, name, timeout_s, progress)
    return namespace, name


def service_url(cluster: Cluster, namespace: str, name: str) -> str:
    """The deployment's address as its status gives it: the DNS name of a Service."""
    url = cluster.kubectl("get", "sdep", name, "-n", namespace, "-o", "jsonpath={.status.url}")
    if not url:
        raise DevclusterError(f"ServingDeployment {namespace}/{name} is Ready and has no status.url")
    return url


def ask(cluster: Cluster, url: str, question: str) -> str:
    """The answer of the first model at `url` to one chat message, without sampling."""
    model = _curl(cluster, f"{url}/v1/models")["data"][0]["id"]
    request = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 32, "temperature": 0}
    answer = _curl(cluster, f"{url}/v1/chat/completions", "--json", json.dumps(request))
    return str(answer["choices"][0]["message"]["content"]).strip()


def wait_for_series(prometheus: Prometheus, timeout_s: float = 60.0) -> dict[str, float]:
    """Sums of `SERIES` over all ranks, as soon as all are above zero.

    Raises:
        DevclusterError: the time is over; names the series that are missing or zero.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        sums = {name: sum(sample.value for sample in prometheus.query(name)) for name in SERIES}
        if all(value > 0 for value in sums.values()):
            return sums
        if time.monotonic() > deadline:
            missing = ", ".join(name for name, value in sums.items() if value <= 0)
            raise DevclusterError(f"after {timeout_s:.0f} s Prometheus holds nothing above zero for {missing}")
        time.sleep(1)


def describe_trouble(cluster: Cluster) -> str:
    """What a person looks at first when the product does not become ready."""
    pods = f"ServingDeployments, MPIJobs, pods:\n{_try(cluster, 'get', 'sdep,mpijobs,pods', '-A', '-o', 'wide')}"
    events = f"last events:\n{_tail(_try(cluster, 'get', 'events', '-A', '--sort-by=.lastTimestamp'), 20)}"
    logs = [f"{path}:\n{_tail(path.read_text(errors='replace'), 15)}" for path in _newest_pod_logs(cluster)]
    return "\n\n".join([pods, events, *logs])


def _newest_pod_logs(cluster: Cluster, count: int = 4) -> list[Path]:
    found = [path for path in (cluster.state / "pods").glob("**/*.log") if path.stat().st_size]
    return sorted(found, key=lambda path: path.stat().st_mtime)[-count:]


def _wait_ready(cluster: Cluster, namespace: str, name: str, timeout_s: int, progress: Progress) -> None:
    target = [f"sdep/{name}", f"--namespace={namespace}"]
    wait = [cluster.tools["kubectl"], "wait", "--for=condition=Ready", *target, f"--timeout={timeout_s}s"]
    process = cluster.popen(wait, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    last = ""
    while process.poll() is None:
        state = _readiness(cluster, target)
        if state != last:
            progress(last := state)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(REPORT_EVERY_S)
    if process.returncode != 0:
        raise CommandError(f"{name} is not Ready after {timeout_s} s ({process.communicate()[0].strip()}): {last}")


def _readiness(cluster: Cluster, target: list[str]) -> str:
    """Reason and message of the condition Ready, as the operator has it now."""
    status = json.loads(cluster.kubectl("get", *target, "-o", "json")).get("status", {})
    ready = [item for item in status.get("conditions", []) if item["type"] == "Ready"]
    return f"{ready[0].get('reason')}: {ready[0].get('message')}" if ready else "no condition yet"


def _curl(cluster: Cluster, *arguments: str) -> Any:
    command = [cluster.tools["curl"], "-sS", "--fail-with-body", "--max-time", "60", *arguments]
    answer = cluster.run(command, capture_output=True, text=True)
    if answer.returncode != 0:
        raise CommandError(f"curl {arguments[0]} ended with {answer.returncode}: {answer.stdout}{answer.stderr}")
    return json.loads(answer.stdout)


def _try(cluster: Cluster, *arguments: str) -> str:
    try:
        return cluster.kubectl(*arguments)
    except CommandError as error:
        return str(error)


def _tail(text: str, lines: int) -> str:
    return "\n".join(text.splitlines()[-lines:])
