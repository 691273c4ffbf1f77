import pytest
import yaml
from support.bad_deployments import RULES, SCHEMA
from support.deployments import EXAMPLES, build_deployment

from lockstep_operator.errors import SpecError
from lockstep_operator.kube import Object
from lockstep_operator.resource.crd import build_root_schema
from lockstep_operator.resource.decode import encode, encode_explicit
from lockstep_operator.resource.docs import _list_rules
from lockstep_operator.resource.spec import Spec, parse_resource


@pytest.mark.parametrize(("item", "words"), [*RULES, *SCHEMA])
def test_a_bad_field_is_refused_by_its_name(item: Object, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_resource(item)
    assert len(caught.value.problems) == 1
    assert words in caught.value.problems[0]


def test_every_rule_has_a_bad_deployment() -> None:
    said = set(_list_rules(build_root_schema()))
    covered = {rule for rule in said for case in RULES if rule.startswith(str(case.values[1]))}
    assert said == covered


def test_all_faults_are_told_at_once() -> None:
    item = build_deployment(replicas=-1, image="", paused=3)
    item["spec"]["model"]["speed"] = "fast"
    with pytest.raises(SpecError) as caught:
        parse_resource(item)
    assert {problem.split(":")[0] for problem in caught.value.problems} == {
        "spec.replicas",
        "spec.image",
        "spec.paused",
        "spec.model.speed",
    }


@pytest.mark.parametrize("raw", [None, [], "x", {"model": 3}], ids=repr)
def test_a_spec_of_another_shape_is_refused(raw: object) -> None:
    with pytest.raises(SpecError, match="spec"):
        parse_resource({"metadata": {"name": "x"}, "spec": raw})


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_right(path: object) -> None:
    parse_resource(yaml.safe_load(path.read_text()))  # type: ignore[attr-defined]


def test_what_is_written_is_read_again() -> None:
    spec = parse_resource(build_deployment(paused=True, imagePullSecrets=[{"name": "a"}]))
    item = build_deployment()
    item["spec"] = encode(spec)
    assert parse_resource(item) == spec


def test_defaults_that_are_spelled_out_are_not_explicit() -> None:
    short = parse_resource(build_deployment())
    long = build_deployment()
    long["spec"] = encode(short)
    assert encode_explicit(parse_resource(long)) == encode_explicit(short)
    assert "imagePullPolicy" not in encode_explicit(short)


@pytest.mark.parametrize(
    ("tensor", "gpus", "nodes", "slots"),
    [(1, 4, 1, 1), (2, 4, 1, 2), (4, 4, 1, 4), (8, 4, 2, 4), (72, 4, 18, 4), (2, 1, 2, 1)],
)
def test_nodes_follow_from_ranks(tensor: int, gpus: int, nodes: int, slots: int) -> None:
    item = build_deployment()
    item["spec"]["roles"][0] |= {"parallelism": {"tensor": tensor}, "gpusPerNode": gpus}
    (role,) = parse_resource(item).roles
    assert (role.num_nodes, role.slots) == (nodes, slots)


def test_the_spec_says_what_every_field_is() -> None:
    def walk(schema: Object, path: str) -> list[str]:
        missing = [] if schema.get("description") else [path]
        for name, child in schema.get("properties", {}).items():
            missing += walk(child, f"{path}.{name}")
        return missing + (walk(schema["items"], f"{path}[]") if "properties" in schema.get("items", {}) else [])

    root = build_root_schema()
    assert walk(root["properties"]["spec"], "spec") == []
    assert walk(root["properties"]["status"], "status") == []
    assert Spec.__doc__
