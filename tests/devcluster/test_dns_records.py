from typing import Any

import pytest

from devcluster.nodes.hosts import hosts_file


def service(name: str, address: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name}, "spec": {"clusterIP": address}}


def endpoint_slice(name: str, *endpoints: dict[str, Any]) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": name}
    return {"metadata": {"namespace": "ns", "name": f"{name}-x1", "labels": labels}, "endpoints": list(endpoints)}


def endpoint(address: str, *, ready: bool = True, **fields: str) -> dict[str, Any]:
    return {"addresses": [address], "conditions": {"ready": ready}, **fields}


def test_a_service_has_its_own_address_and_not_those_of_its_pods() -> None:
    text = hosts_file([service("web", "10.96.0.7")], [endpoint_slice("web", endpoint("10.244.1.2", hostname="web-0"))])

    assert text == "10.96.0.7 web.ns.svc.cluster.local\n"


def test_a_headless_service_answers_for_its_ready_endpoints_and_their_hostnames() -> None:
    ready, unready = endpoint("10.244.1.2", hostname="job-0"), endpoint("10.244.1.3", hostname="job-1", ready=False)

    text = hosts_file([service("job", "None")], [endpoint_slice("job", ready, endpoint("10.244.1.4"), unready)])

    assert text.splitlines() == [
        "10.244.1.2 job-0.job.ns.svc.cluster.local",
        "10.244.1.2 job.ns.svc.cluster.local",
        "10.244.1.4 job.ns.svc.cluster.local",
    ]


@pytest.mark.parametrize(
    ("services", "slices"),
    [
        pytest.param([], [endpoint_slice("gone", endpoint("10.244.1.2"))], id="endpoints that outlive their service"),
        pytest.param([service("new", "")], [], id="a service without an address yet"),
        pytest.param([service("job", "None")], [{**endpoint_slice("job"), "endpoints": None}], id="no endpoints"),
    ],
)
def test_what_has_no_address_has_no_name(services: list[dict[str, Any]], slices: list[dict[str, Any]]) -> None:
    assert hosts_file(services, slices) == ""
