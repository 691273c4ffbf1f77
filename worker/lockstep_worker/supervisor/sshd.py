"""`lockstep-worker sshd`: a worker pod waits for mpirun behind an ssh server of its own.

It runs as any user: host key and settings live in a private directory, and the only way in is the group's key, which
mpi-operator mounts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NoReturn

from lockstep_worker import contract
from lockstep_worker.errors import ConfigError

_PRIVILEGE_SEPARATION = Path("/run/sshd")
"""Compiled into OpenSSH; needed by root only."""


def run_sshd(
    *, port: int = contract.SSH_PORT, ssh_dir: Path = Path(contract.SSH_DIR), address: str | None = None
) -> NoReturn:
    """Become an ssh server.

    Args:
        port: where to listen.
        ssh_dir: holds `authorized_keys`.
        address: the one address to listen on; all when None.

    Raises:
        ConfigError: OpenSSH or the key is missing.
    """
    sshd, keys = find_sshd(), ssh_dir / "authorized_keys"
    if not keys.is_file():
        raise ConfigError([f"sshd: {keys} is missing; the group's ssh key must be mounted at {ssh_dir}"])
    is_root = os.geteuid() == 0
    if is_root:
        _PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    private = Path(tempfile.mkdtemp(prefix="lockstep-sshd-"))
    host_key = private / "host_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(host_key)], check=True)
    settings = private / "sshd_config"
    text = build_settings(address=address, port=port, host_key=host_key, keys=keys, is_root=is_root)
    settings.write_text(text, encoding="utf-8")
    os.execv(sshd, [sshd, "-D", "-e", "-f", str(settings)])


def find_sshd() -> str:
    """Find OpenSSH's server by the absolute path that it insists on.

    Raises:
        ConfigError: OpenSSH's server or `ssh-keygen` is not installed.
    """
    sshd = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
    if sshd is None or shutil.which("ssh-keygen") is None:
        raise ConfigError(["sshd: OpenSSH's server is not installed (sshd and ssh-keygen are needed)"])
    return sshd


def build_settings(*, address: str | None, port: int, host_key: Path, keys: Path, is_root: bool) -> str:
    """Build the server's settings: one key, no password, nothing forwarded, dead clients dropped within two minutes."""
    settings = {
        **({"ListenAddress": address} if address else {}),
        "Port": str(port),
        "HostKey": str(host_key),
        "AuthorizedKeysFile": str(keys),
        "AuthenticationMethods": "publickey",
        "PermitRootLogin": "prohibit-password" if is_root else "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "UsePAM": "no",
        "StrictModes": "no",  # the key comes from a mounted Secret, whose owner and modes are not ours to choose
        "PidFile": "none",
        "PermitUserRC": "no",
        "DisableForwarding": "yes",
        "PrintMotd": "no",
        "UseDNS": "no",
        "MaxStartups": "100",
        "ClientAliveInterval": "15",
        "ClientAliveCountMax": "8",
        "LogLevel": "INFO",
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())
