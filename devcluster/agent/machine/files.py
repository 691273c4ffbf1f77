"""A pod's directory: its volumes, its own files of /etc, and the text of those (pure).

Every file that the pod's processes see from outside their image is written here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from devcluster.agent.client import Object
from devcluster.agent.volumes import File

CLUSTER_DOMAIN = "cluster.local"


def hosts_text(pod: Object, address: str) -> str:
    """Write /etc/hosts: the pod's own names and its `hostAliases`."""
    hostname, subdomain = pod_hostname(pod), pod["spec"].get("subdomain")
    service = f"{hostname}.{subdomain}.{pod['metadata']['namespace']}.svc.{CLUSTER_DOMAIN}"
    own = f"{service} {hostname}" if subdomain else hostname
    lines = ["127.0.0.1 localhost", f"{address} {own}"]
    for alias in pod["spec"].get("hostAliases", []):
        lines.append(f"{alias['ip']} {' '.join(alias.get('hostnames', []))}")
    return "\n".join(lines) + "\n"


def resolver_text(pod: Object, server: str) -> str:
    """Write /etc/resolv.conf by the pod's `dnsPolicy` and `dnsConfig`."""
    namespace, extra = pod["metadata"]["namespace"], pod["spec"].get("dnsConfig") or {}
    is_cluster = pod["spec"].get("dnsPolicy", "ClusterFirst").startswith("ClusterFirst")
    domains = [f"{namespace}.svc.{CLUSTER_DOMAIN}", f"svc.{CLUSTER_DOMAIN}", CLUSTER_DOMAIN] if is_cluster else []
    servers = [server] if is_cluster else []
    options = {"ndots": "5"} if is_cluster else {}
    options |= {option["name"]: option.get("value", "") for option in extra.get("options", [])}
    search = list(dict.fromkeys([*domains, *extra.get("searches", [])]))
    lines = [f"nameserver {address}" for address in dict.fromkeys([*servers, *extra.get("nameservers", [])])]
    if search:
        lines.append(f"search {' '.join(search)}")
    if options:
        lines.append("options " + " ".join(f"{name}:{value}" if value else name for name, value in options.items()))
    return "\n".join(lines) + "\n"


def pod_hostname(pod: Object) -> str:
    """Return the pod's host name: at most 63 characters."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63].rstrip("-.")


def make_volume(directory: Path, group: int | None) -> None:
    """Make an empty volume that every user of the pod may write to."""
    directory.mkdir(parents=True, exist_ok=True)
    if group is None:
        directory.chmod(0o777)
    else:
        os.chown(directory, 0, group)
        directory.chmod(0o2777)


def write_volume(directory: Path, files: Iterable[File], group: int | None) -> None:
    """Bring a filled volume up to date; a reader sees each file whole, old or new."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    wanted = {file.path: file for file in files}
    for file in wanted.values():
        _replace(directory / file.path, file, group)
    for present in [path for path in directory.rglob("*") if path.is_file()]:
        if str(present.relative_to(directory)) not in wanted:
            present.unlink()


def _replace(path: Path, file: File, group: int | None) -> None:
    mode = file.mode if group is None else file.mode | 0o440
    if path.exists() and path.read_bytes() == file.data and path.stat().st_mode & 0o7777 == mode:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as target:
        target.write(file.data)
    if group is not None:
        os.chown(fresh, 0, group)
    fresh.chmod(mode)
    fresh.rename(path)
