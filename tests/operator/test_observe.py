"""What is read of a deployment's surroundings, and what it means that an API is not there."""

import pytest

from lockstep_operator import names
from lockstep_operator.children.mpijob import MPIJOB
from lockstep_operator.children.registry import CHILDREN
from lockstep_operator.children.service import SERVICE
from lockstep_operator.errors import NotFound
from lockstep_operator.groups.state import Observed
from lockstep_operator.kinds import PODS, Kind, Object
from lockstep_operator.observe import observe
from support.cluster.deployments import build_deployment
from support.cluster.more_children import GANG
from support.worlds.stored import SilentLaunchers, Stored


def look(items: dict[Kind, list[Object]]) -> Observed:
    deployment = build_deployment()
    deployment["metadata"] |= {"uid": "deployment", "resourceVersion": "1"}
    return observe(Stored(items), SilentLaunchers(), deployment, (*CHILDREN, GANG))


def test_kinds_of_other_products_may_be_missing() -> None:
    seen = look({SERVICE.kind: [], PODS: []})
    assert set(seen.unserved) == {MPIJOB.kind, GANG.kind}
    assert not seen.is_served(GANG.kind)
    assert seen.is_served(SERVICE.kind)
    assert (seen.groups, dict(seen.children)) == ((), {SERVICE.kind: (), GANG.kind: ()})


def test_what_is_served_is_not_missing() -> None:
    assert look({SERVICE.kind: [], PODS: [], MPIJOB.kind: [], GANG.kind: []}).unserved == ()


@pytest.mark.parametrize("kind", [SERVICE.kind, PODS], ids=lambda kind: kind.name)
def test_the_core_api_is_never_missing(kind: Kind) -> None:
    items: dict[Kind, list[Object]] = {SERVICE.kind: [], PODS: [], MPIJOB.kind: [], GANG.kind: []}
    del items[kind]
    with pytest.raises(NotFound):
        look(items)


def test_a_pod_without_its_group_is_known_by_the_groups_name() -> None:
    labels = {names.LABEL_GROUP: "g", names.LABEL_ROLE: "main", names.LABEL_INDEX: "1"}
    seen = look({SERVICE.kind: [], PODS: [{"metadata": {"name": "g-launcher", "labels": labels}}]})
    (pod,) = seen.leftovers
    assert (pod.name, pod.group, pod.role, pod.index) == ("g-launcher", "g", "main", 1)
