"""The cluster's DNS server: Debian's dnsmasq, fed from Services and EndpointSlices; run inside the cluster.

This process watches the API server, writes a hosts file, and has dnsmasq read it again. It forwards no question: there
is nowhere to forward to.
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from devcluster.kube.client import ApiClient
from devcluster.kube.mirror import Mirror, first_to_end, write_on_change
from devcluster.network.addresses import DNS_DOMAIN
from devcluster.nodes.hosts import hosts_file


def main() -> int:
    """Serves until dnsmasq ends or this process is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--listen", required=True, metavar="IP")
    parser.add_argument("--hosts", type=Path, required=True, metavar="FILE", help="where the answers are written")
    options = parser.parse_args()
    asyncio.run(_serve(options.kubeconfig, options.listen, options.hosts))
    return 1


async def _serve(kubeconfig: Path, listen: str, hosts: Path) -> None:
    hosts.write_text("")
    client = ApiClient.from_kubeconfig(kubeconfig)
    changed = asyncio.Event()
    services = Mirror(client, "/api/v1/services", changed)
    slices = Mirror(client, "/apis/discovery.k8s.io/v1/endpointslices", changed)
    server = await asyncio.create_subprocess_exec(*_dnsmasq(listen, hosts))
    await first_to_end(
        asyncio.create_task(services.follow()),
        asyncio.create_task(slices.follow()),
        asyncio.create_task(
            write_on_change(
                hosts,
                lambda: hosts_file(services.objects, slices.objects),
                changed,
                lambda: os.kill(server.pid, signal.SIGHUP),
            )
        ),
        asyncio.create_task(server.wait()),
    )


def _dnsmasq(listen: str, hosts: Path) -> list[str]:
    return [
        *("setpriv", "--pdeathsig", "KILL", "--", "dnsmasq"),
        "--conf-file=/dev/null",
        "--keep-in-foreground",
        "--log-facility=-",
        "--user=root",
        "--no-resolv",
        "--no-hosts",
        f"--addn-hosts={hosts}",
        f"--local=/{DNS_DOMAIN}/",
        f"--listen-address={listen}",
        "--bind-interfaces",
        "--pid-file=",
    ]


if __name__ == "__main__":
    sys.exit(main())
