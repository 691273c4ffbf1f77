"""`python -m devcluster.agent`: runs the pods of its nodes until SIGTERM or SIGINT, then ends them all."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from devcluster.agent.kubelet import Kubelet
from devcluster.agent.settings import Settings, parse_settings
from devcluster.kube.client import ApiClient


async def run(settings: Settings) -> None:
    """Run the agent until a signal asks for its end."""
    client = ApiClient.from_kubeconfig(settings.kubeconfig)
    work = asyncio.create_task(Kubelet(settings, client).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        logging.info("all pods ended")
    finally:
        await client.close()


def main() -> None:
    """Parse the command line and run."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(run(parse_settings(sys.argv[1:])))


if __name__ == "__main__":
    main()
