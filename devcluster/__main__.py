"""`python -m devcluster`: a real control plane on this machine, to look at and to develop against."""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from devcluster.control.cluster import Cluster, host_environment
from devcluster.control.state import running
from devcluster.errors import DevclusterError
from devcluster.network.netns import Namespaces
from devcluster.nodes.start import start_nodes
from devcluster.paths import CACHE
from devcluster.product.demo import GPUS_PER_NODE, NODES, run_demo, say, say_below, timed, wait_for_interrupt
from devcluster.programs.tools import ensure_tools
from devcluster.progress import to_stderr

STATE = CACHE / "clusters"


def main() -> int:
    """Runs the subcommand; returns the exit code."""
    options = _parser().parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _as_interrupt)  # SIGINT too: a shell starts what runs in the background with it ignored
    try:
        return _run(options)
    except DevclusterError as error:
        to_stderr(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace) -> int:
    match options.command:
        case "tools":
            for name, path in sorted(ensure_tools(to_stderr).programs.items()):
                print(f"{name:24} {path}")
            return 0
        case "demo":
            return run_demo(options.name, STATE, check=options.check)
        case "up":
            return _up(options.name, options.nodes, options.gpus)
        case "shell":
            return _enter(options.name, [os.environ.get("SHELL", "/bin/bash")])
        case _:
            return _enter(options.name, options.argv)


def _up(name: str, nodes: int, gpus: int) -> int:
    with Cluster(name, STATE, progress=say_below) as cluster:
        if nodes:
            with timed(f"{nodes} nodes Ready, kube-proxy, DNS"):
                start_nodes(cluster, nodes, gpus)
        say(f"export KUBECONFIG={cluster.kubeconfig}\nlogs: {cluster.state}\nCtrl-C ends it.")
        wait_for_interrupt(cluster)
    return 0


def _enter(name: str, argv: list[str]) -> int:
    """Becomes the program, in the cluster's network."""
    folder = STATE / name
    cluster = running(folder)
    command = Namespaces(cluster.holder_pid, cluster.inner_pid).outside(argv, Path.cwd())
    kubeconfig = folder / "pki" / "admin.kubeconfig"
    os.execvpe(command[0], command, {**host_environment(cluster.path), "KUBECONFIG": str(kubeconfig)})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m devcluster", description=__doc__)
    parser.add_argument("--name", default="dev", help="of the cluster; several run side by side (default: dev)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tools", help="find, install or build all programs, and print where they are")
    up = commands.add_parser("up", help="start a cluster and stay until Ctrl-C")
    up.add_argument("--nodes", type=int, default=NODES, help=f"0 for a control plane alone (default: {NODES})")
    up.add_argument("--gpus", type=int, default=GPUS_PER_NODE, help=f"of each node (default: {GPUS_PER_NODE})")
    demo = commands.add_parser("demo", help="install Lockstep, serve the small model, measure; stay until Ctrl-C")
    demo.add_argument("--check", action="store_true", help="end with an exit code and leave nothing running")
    commands.add_parser("shell", help="a shell in the running cluster's network")
    run = commands.add_parser("run", help="run a program in the running cluster's network")
    run.add_argument("argv", nargs="+", metavar="PROGRAM", help="after `--`: the program and its arguments")
    return parser


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
