"""The hosts of an MPIJob: reads the hostfile and waits until ssh could reach each of them."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

from lockstep_worker.errors import LockstepError

log = logging.getLogger(__name__)
_CONNECT_TIMEOUT_S = 2.0
_RETRY_S = 1.0
_REPORT_S = 10.0


class HostsMissing(LockstepError):
    """A host of the hostfile cannot be reached."""


def read_hosts(hostfile: Path) -> list[str]:
    """Return the host names of a hostfile (`name slots=N`, `#` comments), in order.

    Raises:
        HostsMissing: the file names no host.
    """
    lines = (line.split("#")[0].split() for line in hostfile.read_text(encoding="utf-8").splitlines())
    hosts = [words[0] for words in lines if words]
    if not hosts:
        raise HostsMissing(f"{hostfile} names no host")
    return hosts


def wait_for_hosts(hosts: list[str], port: int, timeout_s: float, sleep: Callable[[float], bool]) -> bool:
    """Wait until every host is this one or accepts TCP connections on a port.

    Args:
        hosts: names from the hostfile.
        port: where sshd listens.
        timeout_s: seconds to wait at most.
        sleep: waits for so many seconds; returns True when we are asked to stop.

    Returns:
        False when `sleep` said stop.

    Raises:
        HostsMissing: the time is over; names each missing host and what is wrong with it.
    """
    started = reported = time.monotonic()
    while missing := {host: fault for host in hosts if (fault := _fault(host, port))}:
        now = time.monotonic()
        text = "; ".join(f"{host}: {fault}" for host, fault in missing.items())
        if now - started > timeout_s:
            raise HostsMissing(f"{len(missing)} of {len(hosts)} hosts not reached within {timeout_s:g} s: {text}")
        if now - reported > _REPORT_S:
            reported = now
            log.info("waiting for %d of %d hosts since %.0f s: %s", len(missing), len(hosts), now - started, text)
        if sleep(_RETRY_S):
            return False
    return True


def _fault(host: str, port: int) -> str | None:
    """Say why a host cannot be reached, or None. Names are resolved anew each time: DNS follows the pods."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return f"the name does not resolve ({error})"
    if any(_is_local(family, address) for family, _, _, _, address in addresses):
        return None
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return f"port {port} is not open ({error})"
    return None


def _is_local(family: int, address: tuple[object, ...]) -> bool:
    """Only an own address can be bound to."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address[0], 0, *address[2:]))
        return True
    return False
