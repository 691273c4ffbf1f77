"""The process that a cluster's namespaces live and die with; run by `netns.py` inside new network and mount namespaces.

It sets up the network, starts the first process of a PID namespace in which all servers and pods run, and waits.
When it dies, or whoever started it, the kernel ends every process of the cluster and takes the namespaces down.
It must not know what runs in the cluster.
"""

import os
import subprocess
import sys
from pathlib import Path

from devcluster.network.addresses import API_IP, SERVICE_CIDR

REAPER = (
    "import signal; "
    "[signal.signal(s, signal.SIG_IGN) for s in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)]; "
    "print('ready', flush=True)\nwhile True: signal.pause()"
)
"""First process of the PID namespace: ignoring SIGCHLD lets the kernel take away its adopted children."""

SETTINGS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
}
"""Forwarding between pods; and no reverse-path filter, which a new namespace may inherit from the host: an answer from
a Service's pod comes back on another way than the route to its address says."""


def main() -> int:
    """Prepares the namespaces, prints the PID of the PID namespace's owner, and waits for its end."""
    resolv_conf = Path(sys.argv[1])
    _network()
    _resolver(resolv_conf)
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--propagation", "private"]
    inner = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *unshare, sys.executable, "-S", "-E", "-c", REAPER],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert inner.stdout is not None
    if inner.stdout.readline().strip() != "ready":
        return 1
    print(inner.pid, flush=True)
    return inner.wait()


def _network() -> None:
    _ip("link", "set", "lo", "up")
    _ip("address", "add", f"{API_IP}/32", "dev", "lo")
    # The namespace has no default route. This one lets a Service address be asked for at all, so that kube-proxy's
    # rules see the packet; without a rule it ends here, refused.
    _ip("route", "add", "local", SERVICE_CIDR, "dev", "lo", "src", API_IP)
    for key, value in SETTINGS.items():
        Path("/proc/sys", key).write_text(value)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _resolver(resolv_conf: Path) -> None:
    """Makes host programs in this mount namespace ask the cluster's DNS."""
    target = Path(os.path.realpath("/etc/resolv.conf"))
    target.touch()
    subprocess.run(["mount", "--bind", str(resolv_conf), str(target)], check=True)


if __name__ == "__main__":
    sys.exit(main())
