"""What the real API server says to deployments, with the operator's CRD and without the operator."""

import pytest

from devcluster.control.cluster import Cluster
from lockstep_operator.api.decode import encode
from lockstep_operator.api.spec import Spec, parse_deployment
from lockstep_operator.api.status import Condition, Failure, GroupStatus, RoleStatus, Status, read_status
from lockstep_operator.clients.kube import Kube
from lockstep_operator.errors import KubeError
from lockstep_operator.kinds import DEPLOYMENTS, Object
from support.cluster.deployments import build_deployment
from support.cluster.operator_process import install
from support.data.bad_deployments import RULES, SCHEMA

pytestmark = pytest.mark.cluster
UNPROCESSABLE = 422


@pytest.fixture(scope="module", autouse=True)
def _crd(cluster: Cluster) -> None:
    install(cluster)


def create(kube: Kube, item: Object, **query: str) -> Object:
    path = DEPLOYMENTS.build_path(item["metadata"]["namespace"])
    return kube.call("POST", path, {"dryRun": "All", "fieldValidation": "Strict", **query}, item)


@pytest.mark.parametrize(("item", "words"), RULES)
def test_a_broken_rule_is_refused_at_admission_in_the_same_words(kube: Kube, item: Object, words: str) -> None:
    with pytest.raises(KubeError) as caught:
        create(kube, item)
    assert caught.value.status == UNPROCESSABLE
    assert words in caught.value.message


@pytest.mark.parametrize(("item", "words"), SCHEMA)
def test_a_field_beyond_its_limits_is_refused_at_admission_by_its_name(kube: Kube, item: Object, words: str) -> None:
    with pytest.raises(KubeError) as caught:
        create(kube, item)
    assert caught.value.status == UNPROCESSABLE
    assert words in caught.value.message


def test_a_misspelled_field_is_refused(kube: Kube) -> None:
    with pytest.raises(KubeError, match=r'unknown field "spec.replica"'):
        create(kube, build_deployment(replica=1))


def test_the_api_server_fills_in_the_same_defaults_as_the_operator(kube: Kube) -> None:
    item = build_deployment()
    made = create(kube, item)
    assert made["spec"] == encode(parse_deployment(item))
    assert isinstance(parse_deployment(made), Spec)


def test_no_field_of_a_status_is_lost(kube: Kube, cluster_namespace: str) -> None:
    failure = Failure(reason="Hang", time="2026-01-01T00:00:00Z", uid="u", exit_code=86, rank=1, node="n", message="m")
    status = Status(
        observed_generation=1,
        phase="Ready",
        conditions=(Condition(type="Ready", status="True", last_transition_time="2026-01-01T00:00:00Z"),),
        roles=(RoleStatus(name="main", last_failure=failure),),
        groups=(GroupStatus(name="g", workers=("w",), nodes=("n",), failures=(failure.time,), last_failure=failure),),
    )
    made = kube.create(DEPLOYMENTS, build_deployment(cluster_namespace))
    kube.replace_status(DEPLOYMENTS, made | {"status": encode(status)})
    read = kube.get(DEPLOYMENTS, cluster_namespace, made["metadata"]["name"])
    assert read["status"] == encode(status)
    assert read_status(read["status"]) == status
