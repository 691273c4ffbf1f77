"""This host's own address, and a free port on it. Knows no ranks."""

from __future__ import annotations

import socket


def find_own_host() -> str:
    """Find the address that this host's name stands for, at which other hosts reach it."""
    return socket.gethostbyname(socket.gethostname())


def choose_port(host: str) -> int:
    """Choose a free port on an address."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def choose_address(host: str) -> str:
    """Choose a free port on an address; returns `HOST:PORT`."""
    return f"{host}:{choose_port(host)}"
