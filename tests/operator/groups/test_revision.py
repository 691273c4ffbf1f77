"""The revision changes exactly when groups have to be replaced."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_operator.api.spec import parse_deployment
from lockstep_operator.children.mpijob import build_mpijob_spec
from lockstep_operator.groups.revision import compute_revision
from lockstep_operator.kinds import Object
from support.cluster.deployments import EXAMPLES, build_deployment, build_two_roles

CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "image": st.sampled_from(["a", "b"]),
        "imagePullPolicy": st.sampled_from(["Always", "IfNotPresent"]),
        "imagePullSecrets": st.sampled_from([[], [{"name": "s"}]]),
        "replicas": st.integers(0, 3),
        "paused": st.booleans(),
        "drainTimeoutSeconds": st.integers(0, 3),
        "rollout": st.fixed_dictionaries({"maxUnavailable": st.integers(1, 3)}),
        "restartPolicy": st.fixed_dictionaries({"maxRestarts": st.integers(0, 3)}),
        "model": st.sampled_from([{"source": "/a", "servedName": "a"}, {"source": "pvc://c/a", "servedName": "a"}]),
    },
)
ROLES = st.fixed_dictionaries(
    {"name": st.just("main")},
    optional={
        "parallelism": st.fixed_dictionaries({"tensor": st.sampled_from([1, 2, 4, 8])}),
        "engine": st.fixed_dictionaries({}, optional={"overlap": st.booleans(), "maxBatchSize": st.integers(1, 2)}),
        "hangDetector": st.fixed_dictionaries({"timeoutSeconds": st.sampled_from([0, 300])}),
        "nodeSelector": st.sampled_from([{}, {"a": "b"}]),
        "tolerations": st.sampled_from([[], [{"key": "a"}]]),
        "resources": st.sampled_from([{}, {"requests": {"cpu": 1}}]),
    },
)


def render(item: Object) -> tuple[str, str]:
    spec = parse_deployment(item)
    (role,) = spec.roles
    return compute_revision(spec, role), json.dumps(build_mpijob_spec(spec, role, {}), sort_keys=True)


@settings(max_examples=300, deadline=None)
@given(CHANGES, ROLES, CHANGES, ROLES)
def test_the_revision_differs_exactly_when_the_rendered_group_differs(
    one: Object, one_role: Object, other: Object, other_role: Object
) -> None:
    revision, rendered = render(build_deployment(**one, roles=[one_role]))
    other_revision, other_rendered = render(build_deployment(**other, roles=[other_role]))
    assert (revision == other_revision) == (rendered == other_rendered)


@pytest.mark.parametrize(("example", "revision"), [("minimal", "2da756c7"), ("two-nodes", "7103e1b6")])
def test_the_revision_of_the_examples_never_changes_by_itself(example: str, revision: str) -> None:
    """If this fails, an upgrade of the operator would replace every running group."""
    spec = parse_deployment(yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text()))
    assert compute_revision(spec, spec.roles[0]) == revision


def test_a_roles_number_of_groups_is_no_part_of_its_revision() -> None:
    revisions = set()
    for fields in ({}, {"replicas": 0}, {"replicas": 5}):
        spec = parse_deployment(build_deployment(roles=build_two_roles(**fields)))
        revisions.add(compute_revision(spec, spec.roles[1]))
    assert len(revisions) == 1
