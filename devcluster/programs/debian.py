"""Checks for the programs that Debian packages bring and, as root on Debian, installs what is missing."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devcluster.errors import ToolError
from devcluster.filelock import exclusive
from devcluster.paths import CACHE
from devcluster.progress import Progress

PACKAGES = {
    "ip": "iproute2",
    "nft": "nftables",
    "bwrap": "bubblewrap",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "dnsmasq": "dnsmasq-base",
    "curl": "curl",
    "openssl": "openssl",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
}
"""Program to the package that holds it."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_POLICY = Path("/usr/sbin/policy-rc.d")


def find_programs(progress: Progress) -> dict[str, Path]:
    """Paths of all programs in `PACKAGES`, installing what is missing.

    Raises:
        ToolError: some are missing and this is not root on Debian, or apt-get failed.
    """
    if missing := _missing():
        with exclusive(CACHE / "apt.lock", "waiting for another installation of Debian packages", progress):
            if missing := _missing():
                _install(missing, progress)
    if missing := _missing():
        raise ToolError(f"still missing after the installation: {', '.join(missing)}")
    return {name: Path(path) for name in PACKAGES if (path := _which(name))}


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def _missing() -> list[str]:
    return [name for name in PACKAGES if _which(name) is None]


def _install(missing: list[str], progress: Progress) -> None:
    packages = sorted({PACKAGES[name] for name in missing})
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        wanted = " ".join(packages)
        raise ToolError(
            f"missing programs: {', '.join(missing)}. As root on Debian they are installed by themselves; "
            f"here install them by hand (Debian's names: {wanted})"
        )
    progress(f"installing Debian packages: {' '.join(packages)}")
    with _no_services():
        if not _apt_get("install", "-y", "-q", "--no-install-recommends", *packages):
            _apt_get("update", "-q", required=True)
            _apt_get("install", "-y", "-q", "--no-install-recommends", *packages, required=True)


def _apt_get(*arguments: str, required: bool = False) -> bool:
    answer = subprocess.run(
        ["apt-get", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if required and answer.returncode != 0:
        tail = "\n".join((answer.stdout + answer.stderr).splitlines()[-15:])
        raise ToolError(f"apt-get {arguments[0]} failed:\n{tail}")
    return answer.returncode == 0


@contextmanager
def _no_services() -> Iterator[None]:
    """Keeps packages from starting their services (Debian asks policy-rc.d); leaves a policy of others alone."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)
