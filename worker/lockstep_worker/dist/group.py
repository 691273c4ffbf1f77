"""torch.distributed for the model's own collectives, formed from the MPI ranks.

gloo on CPUs, NCCL on GPUs. One rank never initialises it.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from lockstep_worker.dist.address import choose_address, find_own_host
from lockstep_worker.dist.comm import Comm
from lockstep_worker.dist.replica import Replica


def form_group(
    comm: Comm, replica: Replica, device: torch.device, timeout_s: float = 600.0
) -> dist.ProcessGroup | None:
    """Form the tensor-parallel group of this rank's data replica; None for one rank. All ranks must call it.

    Rank 0 chooses its address and a free port and shares them over MPI, so that nothing needs to be configured.
    """
    if replica.width == 1:
        return None
    address = comm.share_text(_own_address() if comm.rank == 0 else "")
    host, port = address.rsplit(":", 1)
    _choose_interface(host)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://{host}:{port}",
        rank=comm.rank,
        world_size=comm.size,
        timeout=timedelta(seconds=timeout_s),
    )
    if replica.count == 1:
        return dist.group.WORLD
    starts = range(0, comm.size, replica.width)
    groups = [dist.new_group(list(range(start, start + replica.width))) for start in starts]
    return groups[replica.index]


def leave_group() -> None:
    """Destroy the group, so that an orderly end does not die in a destructor."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _own_address() -> str:
    """Find an address that peers can reach and a free port on it; loopback when all ranks share this host."""
    alone = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == os.environ.get("OMPI_COMM_WORLD_SIZE")
    return choose_address("127.0.0.1" if alone else find_own_host())


def _choose_interface(host: str) -> None:
    """Keep gloo on loopback when the group does not leave this host; else it follows the host name."""
    if host == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
