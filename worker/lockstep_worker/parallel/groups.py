"""torch.distributed for the model's own collectives, formed from the MPI ranks.

gloo on CPUs, NCCL on GPUs. One rank never initialises it.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from lockstep_worker.parallel.address import choose_address, find_own_host
from lockstep_worker.parallel.comm import Comm
from lockstep_worker.parallel.topology import Topology

AXES_WITH_COLLECTIVES = ("tensor", "pipeline", "expert")
"""Data replicas have none of their own: what they tell each other goes through the exchange."""


def form_groups(comm: Comm, topology: Topology, device: torch.device, timeout_s: float = 600.0) -> Topology:
    """Form this rank's process groups; all ranks must call it.

    Rank 0 chooses its address and a free port and shares them over MPI, so that nothing needs to be configured.

    Returns:
        The topology with a group on each axis that has collectives and more than one rank.
    """
    axes = [axis for axis in AXES_WITH_COLLECTIVES if getattr(topology, axis).size > 1]
    if not axes:
        return topology
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
    return topology.with_groups({axis: _form_axis(topology, axis) for axis in axes})


def _form_axis(topology: Topology, axis: str) -> dist.ProcessGroup | None:
    """Form the groups of one axis, in the same order on every rank, and return this rank's own."""
    if getattr(topology, axis).size == topology.size:
        return dist.group.WORLD
    groups = {tuple(ranks): dist.new_group(ranks) for ranks in topology.list_peers(axis)}
    return next(group for ranks, group in groups.items() if topology.rank in ranks)


def leave_groups() -> None:
    """Destroy the groups, so that an orderly end does not die in a destructor."""
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
