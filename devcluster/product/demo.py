"""The whole of Lockstep once, for a person to watch: real Helm, real control plane, real ranks, real Prometheus.

With `check` it ends by itself and leaves nothing running; without, it stays until Ctrl-C.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from devcluster.control.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.nodes.images import prepare_images
from devcluster.nodes.start import start_nodes
from devcluster.paths import ROOT
from devcluster.product.lockstep import (
    ANSWER,
    QUESTION,
    apply_example,
    ask,
    describe_trouble,
    install,
    pod_monitors,
    service_url,
    wait_for_series,
)
from devcluster.programs.tools import ensure_tools
from devcluster.progress import Stopwatch
from devcluster.prometheus.server import Prometheus, start_prometheus

EXAMPLE = ROOT / "examples" / "minimal.yaml"
NODES = 2
GPUS_PER_NODE = 4


def run_demo(name: str, state_dir: Path, *, check: bool) -> int:
    """Runs the sequence; returns the exit code: 0 when all did what it should.

    Args:
        name: of the cluster.
        state_dir: where its logs and state go.
        check: end then, instead of staying until Ctrl-C.
    """
    whole = Stopwatch()
    with timed("tools"):
        tools = ensure_tools(say_below)
    cluster = Cluster(name, state_dir, tools=tools, progress=say_below)
    try:
        prometheus = _bring_up(cluster)
        url = _serve(cluster)
        _measure(cluster, prometheus)
        say(f"done in {whole.seconds:.0f} s")
        if not check:
            _stay(cluster, url, prometheus)
    except DevclusterError as error:
        say(f"FAILED: {error}")
        say(f"logs: {cluster.state}")
        return 1
    finally:
        with timed("everything stopped"):
            cluster.stop()
    return 0


def _bring_up(cluster: Cluster) -> Prometheus:
    with timed("control plane"):
        cluster.start()
    with timed("images"):
        images = prepare_images(cluster.state)
    with timed(f"{NODES} nodes Ready, kube-proxy, DNS"):
        start_nodes(cluster, NODES, GPUS_PER_NODE, images)
    with timed("Prometheus"):
        return start_prometheus(cluster, pod_monitors(cluster))


def _serve(cluster: Cluster) -> str:
    try:
        with timed("helm install, operator ready"):
            install(cluster)
        with timed(f"kubectl apply -f {EXAMPLE.relative_to(ROOT)}, Ready"):
            namespace, name = apply_example(cluster, EXAMPLE, say_below)
    except DevclusterError:
        say(describe_trouble(cluster))
        raise
    url = service_url(cluster, namespace, name)
    with timed(f"a completion from {url}"):
        answer = ask(cluster, url, QUESTION)
    say(f"    question: {QUESTION}\n    answer:   {answer}")
    if answer != ANSWER:
        raise DevclusterError(f"the answer is {answer!r}; right is {ANSWER!r}")
    return url


def _measure(cluster: Cluster, prometheus: Prometheus) -> None:
    say(_indented(cluster.kubectl("get", "sdep", "-A")))
    with timed("series in Prometheus"):
        series = wait_for_series(prometheus)
    say(_indented("\n".join(f"{name} = {value:g}" for name, value in series.items())))


def _stay(cluster: Cluster, url: str, prometheus: Prometheus) -> None:
    address = urlsplit(url)
    port = cluster.forward("service", address.hostname or "", address.port or 80)
    say(
        f"""
The cluster runs until Ctrl-C. From this machine:
    the API        http://127.0.0.1:{port}/v1
    Prometheus     {prometheus.url}
    kubectl        export KUBECONFIG={cluster.kubeconfig}
    logs           {cluster.state}
In the cluster's own network (it has no way out), with kubectl, helm and curl:
    {sys.executable} -m devcluster --name {cluster.state.name} shell
    curl {url}/v1/models"""
    )
    wait_for_interrupt(cluster)


def wait_for_interrupt(cluster: Cluster) -> None:
    """Returns at Ctrl-C.

    Raises:
        ServerError: a server of the cluster ended meanwhile.
    """
    try:
        while True:
            cluster.servers.check()

            time.sleep(2)
    except KeyboardInterrupt:
        say("")


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Prints one line with the seconds that the block took, when it is done."""
    watch = Stopwatch()
    yield
    say(f"{watch.seconds:6.1f} s  {name}")


def say(line: str) -> None:
    """Prints at once."""
    print(line, flush=True)


def say_below(line: str) -> None:
    """Prints what happens within a timed block."""
    say(f"          . {line}")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
