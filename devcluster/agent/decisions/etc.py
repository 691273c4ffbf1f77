"""Pure: the text of a pod's own files of /etc, and its host name."""

from __future__ import annotations

from devcluster.kube.objects import Object
from devcluster.network.addresses import DNS_DOMAIN


def hosts_text(pod: Object, address: str) -> str:
    """Write /etc/hosts: the pod's own names and its `hostAliases`."""
    hostname, subdomain = pod_hostname(pod), pod["spec"].get("subdomain")
    service = f"{hostname}.{subdomain}.{pod['metadata']['namespace']}.svc.{DNS_DOMAIN}"
    own = f"{service} {hostname}" if subdomain else hostname
    lines = ["127.0.0.1 localhost", f"{address} {own}"]
    for alias in pod["spec"].get("hostAliases", []):
        lines.append(f"{alias['ip']} {' '.join(alias.get('hostnames', []))}")
    return "\n".join(lines) + "\n"


def resolver_text(pod: Object, server: str) -> str:
    """Write /etc/resolv.conf by the pod's `dnsPolicy` and `dnsConfig`."""
    namespace, extra = pod["metadata"]["namespace"], pod["spec"].get("dnsConfig") or {}
    is_cluster = pod["spec"].get("dnsPolicy", "ClusterFirst").startswith("ClusterFirst")
    domains = [f"{namespace}.svc.{DNS_DOMAIN}", f"svc.{DNS_DOMAIN}", DNS_DOMAIN] if is_cluster else []
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
