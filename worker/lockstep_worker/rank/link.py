"""Where the frontend and the ranks meet: the sockets' addresses, and the keys for those on other hosts."""

from __future__ import annotations

import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from lockstep_worker.executor.publish import Outlet
from lockstep_worker.frontend.settings import RemoteOutbound
from lockstep_worker.parallel.address import choose_address, find_own_host
from lockstep_worker.parallel.comm import Comm


@dataclass(frozen=True, slots=True)
class _Whereabouts:
    """What rank 0 tells its peers of the link; over MPI only, for it holds the key that other hosts connect with."""

    folder: str
    outlet: Outlet
    """For ranks on other hosts; without an address when there are none."""


@dataclass(frozen=True, slots=True)
class LinkAddresses:
    """The sockets between the frontend and the ranks.

    On its host they are in a folder that only this user can enter; from other hosts ranks publish over TCP with CURVE.
    """

    folder: Path
    outlet: Outlet
    """Where this rank publishes."""
    remote: RemoteOutbound | None = None
    """On rank 0: what the frontend binds for ranks on other hosts, where there are any."""

    @classmethod
    def share(cls, comm: Comm) -> LinkAddresses:
        """Make the folder, with mode 0700, and the keys on rank 0, and tell all ranks; blocking, at start."""
        hosts = comm.gather_text(socket.gethostname())
        remote, mine = None, ""
        if comm.rank == 0:
            remote, outlet = _make_keys() if len(set(hosts)) > 1 else (None, Outlet(""))
            mine = msgspec.json.encode(_Whereabouts(tempfile.mkdtemp(prefix="lockstep-"), outlet)).decode()
        told = msgspec.json.decode(comm.share_text(mine), type=_Whereabouts)
        folder, is_here = Path(told.folder), hosts[comm.rank] == hosts[0]
        return cls(folder, Outlet(f"ipc://{folder}/out") if is_here else told.outlet, remote)

    @property
    def inbound(self) -> str:
        """Frontend to rank 0."""
        return f"ipc://{self.folder}/in"

    @property
    def outbound(self) -> str:
        """Ranks to frontend."""
        return f"ipc://{self.folder}/out"

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _make_keys() -> tuple[RemoteOutbound, Outlet]:
    """Choose an address of this host and a free port on it, and make the frontend's keys and those of its peers."""
    address = f"tcp://{choose_address(find_own_host())}"
    (public, secret), (peer_public, peer_secret) = ([key.decode() for key in zmq.curve_keypair()] for _ in range(2))
    remote = RemoteOutbound(address=address, public_key=public, secret_key=secret, rank_keys=(peer_public,))
    return remote, Outlet(address, public, peer_public, peer_secret)
