import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.deployments import EXAMPLES, build_deployment

from lockstep_operator import names
from lockstep_operator.decide.revision import compute_revision
from lockstep_operator.kube import Object
from lockstep_operator.manifests.mpijob import build_mpijob, build_mpijob_spec
from lockstep_operator.manifests.pods import find_model_path
from lockstep_operator.manifests.service import build_service
from lockstep_operator.offline import plan_document
from lockstep_operator.resource.spec import Spec, parse_resource
from lockstep_worker import contract

TWO_NODES: Object = yaml.safe_load((EXAMPLES / "two-nodes.yaml").read_text())


def build(spec: Spec, index: int = 0) -> Object:
    (role,) = spec.roles
    return build_mpijob(
        spec, role, deployment="recall", namespace="default", name="recall-main-0", index=index, revision="r"
    )


def read_templates(job: Object) -> list[Object]:
    return [replica["template"] for replica in job["spec"]["mpiReplicaSpecs"].values()]


def test_mpi_operator_restarts_nothing_and_keeps_nothing() -> None:
    job = build(parse_resource(TWO_NODES))["spec"]
    assert job["runPolicy"] == {"cleanPodPolicy": "All", "backoffLimit": 0}
    assert job["runLauncherAsWorker"] is True
    assert job["launcherCreationPolicy"] == "WaitForWorkersReady"
    assert {replica["restartPolicy"] for replica in job["mpiReplicaSpecs"].values()} == {"Never"}
    assert job["slotsPerWorker"] == 4
    assert job["mpiReplicaSpecs"]["Worker"]["replicas"] == 1


def test_one_node_needs_no_worker() -> None:
    item = build_deployment()
    item["spec"]["roles"][0] |= {"parallelism": {"tensor": 2}, "gpusPerNode": 4}
    job = build(parse_resource(item))["spec"]
    assert "Worker" not in job["mpiReplicaSpecs"]
    assert "launcherCreationPolicy" not in job
    assert job["slotsPerWorker"] == 2


def test_pods_obey_the_restricted_standard_and_ask_for_their_gpus() -> None:
    for template in read_templates(build(parse_resource(TWO_NODES))):
        pod = template["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == contract.USER_ID
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["resources"]["limits"] == {"memory": "512Gi", "nvidia.com/gpu": 4}
        assert container["terminationMessagePath"] == contract.TERMINATION_LOG
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
        assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-GB200"}
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["terminationGracePeriodSeconds"] > 300
        assert pod["automountServiceAccountToken"] is False


def test_each_local_rank_has_a_metrics_port_in_every_pod() -> None:
    for template in read_templates(build(parse_resource(TWO_NODES))):
        ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
        assert [ports[f"metrics-{rank}"] for rank in range(4)] == [9400, 9401, 9402, 9403]


def test_launchers_are_probed_by_http_and_workers_by_their_ssh_port() -> None:
    launcher, worker = [
        template["spec"]["containers"][0] for template in read_templates(build(parse_resource(TWO_NODES)))
    ]
    assert launcher["readinessProbe"]["httpGet"]["path"] == contract.READY_PATH
    assert launcher["startupProbe"]["httpGet"]["path"] == launcher["livenessProbe"]["httpGet"]["path"] == "/health"
    assert launcher["startupProbe"]["periodSeconds"] * launcher["startupProbe"]["failureThreshold"] == 45 * 60
    assert worker["readinessProbe"]["tcpSocket"] == {"port": contract.SSH_PORT}
    assert worker["command"] == contract.sshd_command()


def test_only_launchers_get_traffic() -> None:
    spec = parse_resource(TWO_NODES)
    launcher, worker = [template["metadata"]["labels"] for template in read_templates(build(spec))]
    selector = build_service(spec.roles[0], deployment="recall", namespace="default")["spec"]["selector"]
    assert selector.items() <= launcher.items()
    assert not selector.items() <= worker.items()


def test_every_field_of_the_engine_reaches_the_command() -> None:
    item = build_deployment(drainTimeoutSeconds=7)
    item["spec"]["model"] |= {"maxModelLen": 99, "dtype": "float16"}
    engine = {
        "maxBatchSize": 3,
        "maxNumTokens": 5,
        "kvCacheMemoryFraction": 0.5,
        "overlap": False,
        "extraArgs": ["--x"],
    }
    item["spec"]["roles"][0] |= {"engine": engine, "hangDetector": {"timeoutSeconds": 11}}
    command = build(parse_resource(item))["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert command["command"] == contract.serve_command(
        model="/opt/lockstep/models/recall",
        served_model_name="recall",
        tensor_parallel=2,
        max_model_len=99,
        dtype="float16",
        max_batch_size=3,
        max_num_tokens=5,
        kv_cache_memory_fraction=0.5,
        overlap=False,
        hang_timeout_s=11,
        drain_timeout_s=7,
        extra_args=("--x",),
    )


def test_a_claim_is_mounted_read_only_where_the_command_looks() -> None:
    assert find_model_path("pvc://models/a/b") == f"{contract.MODEL_MOUNT}/a/b"
    for template in read_templates(build(parse_resource(TWO_NODES))):
        volume = {"name": "model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
        assert volume in template["spec"]["volumes"]
        mount = {"name": "model", "mountPath": contract.MODEL_MOUNT, "readOnly": True}
        assert mount in template["spec"]["containers"][0]["volumeMounts"]


def test_the_longest_names_fit() -> None:
    longest = "a" * (names.MAX_DEPLOYMENT_AND_ROLE - 4)
    group = names.build_group_name(longest, "main", "r" * 8, 99, names.MAX_INCARNATION)
    assert len(f"{group}-worker-99") == 63
    assert len(f"{group}-launcher") <= 63


# --- the revision ---

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
    spec = parse_resource(item)
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


def test_the_revision_of_the_example_never_changes_by_itself() -> None:
    """If this fails, an upgrade of the operator would replace every running group."""
    spec = parse_resource(yaml.safe_load((EXAMPLES / "two-nodes.yaml").read_text()))
    assert compute_revision(spec, spec.roles[0]) == "7103e1b6"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_an_example_becomes_a_service_and_its_groups(path: object) -> None:
    item = yaml.safe_load(path.read_text())  # type: ignore[attr-defined]
    kinds = [manifest["kind"] for manifest in plan_document(item)]
    assert kinds == ["Service", *["MPIJob"] * item["spec"]["replicas"]]
