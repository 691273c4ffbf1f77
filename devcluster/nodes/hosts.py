"""Which names the cluster's DNS answers, from Services and EndpointSlices: pure.

`<service>.<namespace>.svc.cluster.local` is the Service's own address, or for a headless Service the addresses of its
ready endpoints; `<hostname>.<service>...` is one endpoint that has a hostname. The endpoint controller marks all
endpoints of a Service with publishNotReadyAddresses as ready, so nothing is to be known about that here.
"""

from collections.abc import Iterable

from devcluster.kube.objects import Object
from devcluster.network.addresses import DNS_DOMAIN


def hosts_file(services: Iterable[Object], slices: Iterable[Object]) -> str:
    """The content of a hosts file, one sorted `address name` line per answer."""
    headless: set[tuple[str, str]] = set()
    lines: set[str] = set()
    for service in services:
        key = (service["metadata"]["namespace"], service["metadata"]["name"])
        address = service["spec"].get("clusterIP", "")
        if address == "None":
            headless.add(key)
        elif address:
            lines.add(f"{address} {_name(*key)}")
    for piece in slices:
        namespace, labels = piece["metadata"]["namespace"], piece["metadata"].get("labels", {})
        owner = (namespace, labels.get("kubernetes.io/service-name", ""))
        if owner in headless:
            lines.update(_endpoint_lines(piece, _name(*owner)))
    return "".join(f"{line}\n" for line in sorted(lines))


def _endpoint_lines(piece: Object, service_name: str) -> Iterable[str]:
    for endpoint in piece.get("endpoints") or []:
        if endpoint.get("conditions", {}).get("ready") is False:
            continue
        for address in endpoint["addresses"]:
            yield f"{address} {service_name}"
            if hostname := endpoint.get("hostname"):
                yield f"{address} {hostname}.{service_name}"


def _name(namespace: str, service: str) -> str:
    return f"{service}.{namespace}.svc.{DNS_DOMAIN}"
