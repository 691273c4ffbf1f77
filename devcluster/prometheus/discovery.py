"""Tells Prometheus which pods there are: watches them with Prometheus's own rights; run inside the cluster."""

import argparse
import asyncio
import sys
from pathlib import Path

from devcluster.kube.client import ApiClient
from devcluster.kube.mirror import Mirror, first_to_end, write_on_change
from devcluster.prometheus.targets import targets_file


def main() -> int:
    """Writes the file after each change until this process is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--targets", type=Path, required=True, metavar="FILE", help="of Prometheus's file_sd_configs")
    options = parser.parse_args()
    asyncio.run(_serve(options.kubeconfig, options.targets))
    return 1


async def _serve(kubeconfig: Path, targets: Path) -> None:
    changed = asyncio.Event()
    pods = Mirror(ApiClient.from_kubeconfig(kubeconfig), "/api/v1/pods", changed)
    await first_to_end(
        asyncio.create_task(pods.follow()),
        asyncio.create_task(write_on_change(targets, lambda: targets_file(pods.objects), changed, lambda: None)),
    )


if __name__ == "__main__":
    sys.exit(main())
