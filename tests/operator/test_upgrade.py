"""What the operator wrote when a deployment had exactly one role: the present one finds nothing to do about it.

`objects_of_one_role.json` holds what that operator's own code wrote for two groups, of which one hung once and was
replaced, and the pods that stood around it.
"""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from lockstep_operator import names
from lockstep_operator.api.decode import encode
from lockstep_operator.api.spec import parse_deployment
from lockstep_operator.api.status import parse_time
from lockstep_operator.children.mpijob import MPIJOB, build_mpijob
from lockstep_operator.children.owner import add_owner
from lockstep_operator.children.registry import CHILDREN
from lockstep_operator.children.service import SERVICE, build_service
from lockstep_operator.groups.state import Observed
from lockstep_operator.kinds import PODS, Object
from lockstep_operator.observe import observe
from lockstep_operator.plan.actions import Plan
from lockstep_operator.plan.plan import plan
from lockstep_operator.status.status import status
from support.worlds.stored import SilentLaunchers, Stored

STORED = json.loads((Path(__file__).parent / "cluster" / "objects_of_one_role.json").read_text())
DEPLOYMENT: Object = STORED["deployment"]
NOW = parse_time(STORED["now"])
SERVERS_FIELDS = ("uid", "resourceVersion", "creationTimestamp")


def look() -> Observed:
    items = {SERVICE.kind: STORED["services"], MPIJOB.kind: STORED["mpijobs"], PODS: STORED["pods"]}
    return observe(Stored(items), SilentLaunchers(), DEPLOYMENT, CHILDREN)


def write_out(item: Object) -> str:
    """An object as it was sent, in its own order: without what the API server and mpi-operator added."""
    metadata = {name: value for name, value in item["metadata"].items() if name not in SERVERS_FIELDS}
    return json.dumps({name: value for name, value in (item | {"metadata": metadata}).items() if name != "status"})


@pytest.mark.parametrize("now", [NOW, NOW + timedelta(days=400)], ids=["at once", "much later"])
def test_nothing_is_asked_for_and_nothing_told_anew(now: datetime) -> None:
    seen = look()
    assert len(seen.groups) == 2
    assert plan(seen, now, CHILDREN) == Plan()
    assert encode(status(seen, (), now)) == DEPLOYMENT["status"]


def test_what_was_remembered_is_read() -> None:
    before = look().before
    assert [(group.restarts, len(group.workers)) for group in before.groups] == [(1, 1), (0, 1)]
    assert before.groups[0].last_failure is not None
    assert before.groups[0].last_failure.reason == "Hang"


def test_the_same_children_would_be_written_byte_for_byte() -> None:
    spec = parse_deployment(DEPLOYMENT)
    (role,) = spec.roles
    where = {"deployment": "recall", "namespace": "default"}
    manifests = [build_service(role, **where)]
    for index in range(2):
        revision = DEPLOYMENT["status"]["revision"]
        name = names.build_group_name("recall", "main", revision, index)
        manifests.append(build_mpijob(spec, role, **where, name=name, index=index, revision=revision))
    written = sorted(write_out(item) for item in (*STORED["services"], *STORED["mpijobs"]))
    uid = DEPLOYMENT["metadata"]["uid"]
    assert sorted(write_out(add_owner(manifest, "recall", uid)) for manifest in manifests) == written
