"""The command line: `run` the operator, print the manifests of a file with `plan`, print the CRD with `crd`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from lockstep_operator.api.crd import build_crd_yaml
from lockstep_operator.api.docs import build_docs
from lockstep_operator.children.child import Child
from lockstep_operator.children.registry import CHILDREN
from lockstep_operator.clients.kube import Kube
from lockstep_operator.clients.launcher import Launchers
from lockstep_operator.controller.controller import Controller
from lockstep_operator.controller.event_source import run
from lockstep_operator.endpoint import start_endpoint
from lockstep_operator.errors import OperatorError, SettingsError, SpecError
from lockstep_operator.metrics import Metrics
from lockstep_operator.offline import plan_file
from lockstep_operator.reconcile import Reconciler
from lockstep_operator.settings import Settings, read_settings

EXIT_USAGE = 2


def main() -> None:
    """Run one command and exit."""
    arguments = _build_parser().parse_args()
    try:
        arguments.command(arguments)
    except (SettingsError, SpecError) as error:
        sys.stderr.writelines(f"{problem}\n" for problem in error.problems)
        sys.exit(EXIT_USAGE)
    except OperatorError as error:
        sys.exit(f"lockstep-operator: {error}")


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lockstep-operator", description="Serves models from ServingDeployment objects."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("run", help="watch the cluster and act; settings come from the environment")
    serve.set_defaults(command=lambda _: run_operator(read_settings(os.environ)))
    plan = commands.add_parser("plan", help="print what a ServingDeployment would become; no cluster is needed")
    plan.add_argument(
        "-f", "--file", required=True, metavar="FILE", help="YAML with ServingDeployments; - is standard input"
    )
    plan.set_defaults(command=lambda arguments: sys.stdout.write(plan_file(_read_file(arguments.file))))
    crd = commands.add_parser("crd", help="print the CustomResourceDefinition")
    crd.add_argument("--docs", action="store_true", help="print its reference page (Markdown) instead")
    crd.set_defaults(command=lambda arguments: sys.stdout.write(build_docs() if arguments.docs else build_crd_yaml()))
    return parser


def _read_file(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError([f"{name}: {error.strerror}"]) from error


def run_operator(settings: Settings, children: tuple[Child, ...] = CHILDREN) -> None:
    """Run the operator, with these kinds of children, until the process is told to end."""
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLevelName(settings.log_level)))
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    kube = Kube(metrics.count_write)
    reconciler = Reconciler(kube, Launchers(), metrics, children)
    controller = Controller(settings, kube, reconciler, metrics, children)
    server = start_endpoint(settings.metrics_host, settings.metrics_port, registry, controller.is_alive)
    logging.getLogger("lockstep_operator").info(
        "watching %s; metrics on port %d", ", ".join(settings.namespaces) or "all namespaces", server.server_port
    )
    try:
        run(settings, controller, children)
    finally:
        server.shutdown()


if __name__ == "__main__":
    main()
