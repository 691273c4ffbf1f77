"""Runs the real `helm` on the chart without a cluster."""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from devcluster.programs.clients import find_clients
from devcluster.progress import to_stderr

CHART = Path(__file__).resolve().parents[3] / "charts" / "lockstep"
PROMETHEUS = "monitoring.coreos.com/v1"
MPIJOB = "kubeflow.org/v2beta1"
Manifest = dict[str, Any]


class HelmError(Exception):
    """helm ended with an error; the message is what it printed."""


@cache
def _binary() -> Path:
    return find_clients(to_stderr)["helm"]


def helm(*arguments: str) -> str:
    """Run helm with a state of its own and return what it printed.

    Raises:
        HelmError: helm ended with an error.
    """
    with tempfile.TemporaryDirectory() as home:
        names = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
        environment = os.environ | dict.fromkeys(names, home) | {"KUBECONFIG": f"{home}/none"}
        done = subprocess.run([str(_binary()), *arguments], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise HelmError(done.stderr + done.stdout)
    return done.stdout


def render(*arguments: str, serves: tuple[str, ...] = (), release: str = "lockstep") -> list[Manifest]:
    """Render the chart into namespace `lockstep-system` and return its objects.

    Args:
        arguments: further arguments of `helm template`, such as `--set`.
        serves: API versions of the cluster beside Kubernetes' own.
        release: the name of the release.
    """
    versions = [part for version in serves for part in ("--api-versions", version)]
    text = helm("template", release, str(CHART), "--namespace", "lockstep-system", *versions, *arguments)
    return [document for document in yaml.safe_load_all(text) if document]


def notes(*arguments: str) -> str:
    """Render NOTES.txt as `helm install` prints it for a cluster that serves nothing beside Kubernetes' own."""
    text = helm("install", "lockstep", str(CHART), "-n", "lockstep-system", "--dry-run=client", *arguments)
    return text.partition("\nNOTES:\n")[2]


def pick(manifests: list[Manifest], kind: str, suffix: str = "") -> Manifest:
    """The one object of that kind whose name ends with `suffix`."""
    found = [one for one in manifests if one["kind"] == kind and one["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1, f"{len(found)} objects of kind {kind} end with {suffix!r}"
    return found[0]
