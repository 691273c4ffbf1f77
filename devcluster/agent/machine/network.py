"""A pod's network: one routed link per pod, no bridge, so that kube-proxy's rules see every packet between pods.

The pod has an address of its own (/32) and a default route over its link; the node's side has a host route. The link
dies with the pod's namespace, so nothing is left behind. Knows addresses and process ids, no Kubernetes object.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json

from devcluster.agent.errors import AgentError

LINK_PREFIX = "pod"


class AddressPool:
    """The free addresses of one node's pod range; the first address is the gateway's."""

    def __init__(self, cidr: ipaddress.IPv4Network) -> None:
        self._cidr = cidr
        self._used: set[str] = set()
        self._next = 2

    def take(self) -> str:
        """Return an address that no pod has; freed ones come last, so that stale connections find nobody.

        Raises:
            AgentError: the range is full.
        """
        size = self._cidr.num_addresses - 3  # all but the network's own, the gateway's and the broadcast address
        # `_next` stands behind the address given last, and the search goes once round from there: so an address that
        # was freed meanwhile is given again only after every other free one.
        for offset in range(size):
            candidate = str(self._cidr[2 + (self._next - 2 + offset) % size])
            if candidate not in self._used:
                self._used.add(candidate)
                self._next = 2 + (self._next - 1 + offset) % size
                return candidate
        raise AgentError(f"pod range {self._cidr} has no free address: all {size} are taken")

    def free(self, address: str) -> None:
        """Give an address back."""
        self._used.discard(address)


def link_name(pod_uid: str) -> str:
    """Name the node's end of a pod's link: at most 15 characters, the same for the same pod."""
    return LINK_PREFIX + hashlib.sha256(pod_uid.encode()).hexdigest()[:11]


def node_side(link: str, pause_pid: int, pod: str, gateway: str, node: str) -> list[str]:
    """Build the `ip` batch for the node's namespace."""
    return [
        f"link add {link} type veth peer name eth0 netns {pause_pid}",
        f"addr add {gateway}/32 dev {link}",
        f"link set {link} up",
        f"route add {pod}/32 dev {link} src {node}",
    ]


def pod_side(pod: str, gateway: str) -> list[str]:
    """Build the `ip` batch for the pod's namespace."""
    return [
        "link set lo up",
        f"addr add {pod}/32 dev eth0",
        "link set eth0 up",
        f"route add {gateway}/32 dev eth0 scope link",
        f"route add default via {gateway} dev eth0 src {pod}",
    ]


async def connect_pod(pod_uid: str, pause_pid: int, pod: str, gateway: str, node: str) -> None:
    """Link a pod's namespace to the agent's own one."""
    await run_batch(node_side(link_name(pod_uid), pause_pid, pod, gateway, node))
    await run_batch(pod_side(pod, gateway), ["nsenter", "--target", str(pause_pid), "--net", "--"])


async def disconnect_pod(pod_uid: str) -> None:
    """Remove the link at once: the kernel ends a namespace some time after its last process."""
    await remove_link(link_name(pod_uid))


async def remove_link(name: str) -> None:
    """Remove a link; it may be gone already."""
    process = await asyncio.create_subprocess_exec("ip", "link", "del", name, stderr=asyncio.subprocess.DEVNULL)
    await process.wait()


async def prepare_node(addresses: list[str]) -> None:
    """Let this namespace forward, and give it the nodes' addresses where it does not have them yet.

    Links of an earlier agent's pods are removed: the kernel takes its time with those.
    """
    with open("/proc/sys/net/ipv4/ip_forward", "w", encoding="ascii") as switch:
        switch.write("1")
    listing = await asyncio.create_subprocess_exec("ip", "-json", "addr", stdout=asyncio.subprocess.PIPE)
    output, _ = await listing.communicate()
    links = json.loads(output)
    for link in [link["ifname"] for link in links if link["ifname"].startswith(LINK_PREFIX)]:
        await remove_link(link)
    present = {info["local"] for link in links for info in link["addr_info"]}
    await run_batch(["link set lo up", *(f"addr add {ip}/32 dev lo" for ip in addresses if ip not in present)])


async def run_batch(lines: list[str], prefix: list[str] | None = None) -> None:
    """Run several `ip` commands as one.

    Raises:
        AgentError: with `ip`'s own words.
    """
    command = [*(prefix or []), "ip", "-batch", "-"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stderr=pipe)
    _, errors = await process.communicate("\n".join(lines).encode())
    if process.returncode:
        raise AgentError(f"network: {errors.decode(errors='replace').strip()}")
