"""The agent's command line as frozen data. Knows no API server and no process."""

from __future__ import annotations

import argparse
import ipaddress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One node: `address` is its InternalIP, `pod_cidr` the range that its pods' addresses come from."""

    name: str
    address: str
    pod_cidr: ipaddress.IPv4Network

    @property
    def gateway(self) -> str:
        """The address on the node's side of every pod's link."""
        return str(self.pod_cidr[1])


@dataclass(frozen=True, slots=True)
class Settings:
    """What one agent process needs to know; `gpus` is the number of GPUs that each node claims to have."""

    kubeconfig: Path
    state_dir: Path
    images: Path
    nodes: tuple[NodeSettings, ...]
    gpus: int
    dns: str


def parse_node(text: str) -> NodeSettings:
    """Parse `NAME=NODE_IP,POD_CIDR`.

    Raises:
        argparse.ArgumentTypeError: says which part is wrong.
    """
    name, _, rest = text.partition("=")
    address, _, cidr = rest.partition(",")
    if not (name and address and cidr):
        raise argparse.ArgumentTypeError(f"node {text!r}: expected NAME=NODE_IP,POD_CIDR")
    try:
        network = ipaddress.IPv4Network(cidr)
        return NodeSettings(name, str(ipaddress.IPv4Address(address)), network)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"node {name!r}: {error}") from error


def parse_settings(argv: list[str]) -> Settings:
    """Parse the command line; argparse prints the error and ends the program when it is wrong."""
    parser = argparse.ArgumentParser(prog="devcluster.agent", description="Run pods as processes on this machine.")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--state-dir", type=Path, required=True, help="pods' files and logs; nothing else lives here")
    parser.add_argument("--images", type=Path, required=True, help="JSON file of devcluster.nodes.images")
    parser.add_argument("--node", type=parse_node, action="append", required=True, metavar="NAME=NODE_IP,POD_CIDR")
    parser.add_argument("--gpus", type=int, default=0, help="nvidia.com/gpu capacity of each node")
    parser.add_argument("--dns", required=True, metavar="IP", help="the cluster's name server")
    given = parser.parse_args(argv)
    return Settings(
        kubeconfig=given.kubeconfig,
        state_dir=given.state_dir.resolve(),
        images=given.images,
        nodes=tuple(given.node),
        gpus=given.gpus,
        dns=given.dns,
    )
