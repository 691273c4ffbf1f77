import pytest
import yaml

from lockstep_operator import names
from lockstep_operator.api.engine_options import find_model_path
from lockstep_operator.api.spec import Spec, parse_deployment
from lockstep_operator.children.mpijob import build_mpijob
from lockstep_operator.children.service import build_service
from lockstep_operator.kinds import Object
from lockstep_operator.offline import plan_document
from lockstep_worker import contract
from support.cluster.deployments import EXAMPLES, build_deployment

TWO_NODES: Object = yaml.safe_load((EXAMPLES / "two-nodes.yaml").read_text())


def build(spec: Spec, index: int = 0) -> Object:
    (role,) = spec.roles
    return build_mpijob(
        spec, role, deployment="recall", namespace="default", name="recall-main-0", index=index, revision="r"
    )


def read_templates(job: Object) -> list[Object]:
    return [replica["template"] for replica in job["spec"]["mpiReplicaSpecs"].values()]


def test_mpi_operator_restarts_nothing_and_keeps_nothing() -> None:
    job = build(parse_deployment(TWO_NODES))["spec"]
    assert job["runPolicy"] == {"cleanPodPolicy": "All", "backoffLimit": 0}
    assert job["runLauncherAsWorker"] is True
    assert job["launcherCreationPolicy"] == "WaitForWorkersReady"
    assert {replica["restartPolicy"] for replica in job["mpiReplicaSpecs"].values()} == {"Never"}
    assert job["slotsPerWorker"] == 4
    assert job["mpiReplicaSpecs"]["Worker"]["replicas"] == 1


def test_one_node_needs_no_worker() -> None:
    item = build_deployment()
    item["spec"]["roles"][0] |= {"parallelism": {"tensor": 2}, "gpusPerNode": 4}
    job = build(parse_deployment(item))["spec"]
    assert "Worker" not in job["mpiReplicaSpecs"]
    assert "launcherCreationPolicy" not in job
    assert job["slotsPerWorker"] == 2


def test_pods_obey_the_restricted_standard_and_ask_for_their_gpus() -> None:
    for template in read_templates(build(parse_deployment(TWO_NODES))):
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
    for template in read_templates(build(parse_deployment(TWO_NODES))):
        ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
        assert [ports[f"metrics-{rank}"] for rank in range(4)] == [9400, 9401, 9402, 9403]


def test_launchers_are_probed_by_http_and_workers_by_their_ssh_port() -> None:
    launcher, worker = [
        template["spec"]["containers"][0] for template in read_templates(build(parse_deployment(TWO_NODES)))
    ]
    assert launcher["readinessProbe"]["httpGet"]["path"] == contract.READY_PATH
    assert launcher["startupProbe"]["httpGet"]["path"] == launcher["livenessProbe"]["httpGet"]["path"] == "/health"
    assert launcher["startupProbe"]["periodSeconds"] * launcher["startupProbe"]["failureThreshold"] == 45 * 60
    assert worker["readinessProbe"]["tcpSocket"] == {"port": contract.SSH_PORT}
    assert worker["command"] == contract.sshd_command()


def test_only_launchers_get_traffic() -> None:
    spec = parse_deployment(TWO_NODES)
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
    command = build(parse_deployment(item))["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert command["command"] == [
        *(contract.PROGRAM, "serve"),
        *("--host", "0.0.0.0"),
        *("--model", "/opt/lockstep/models/recall"),
        *("--served-model-name", "recall"),
        *("--tensor-parallel", "2"),
        *("--data-parallel", "1"),
        *("--max-model-len", "99"),
        *("--dtype", "float16"),
        *("--max-batch-size", "3"),
        *("--max-num-tokens", "5"),
        *("--kv-cache-memory-fraction", "0.5"),
        *("--hang-timeout", "11"),
        *("--drain-timeout", "7"),
        "--no-overlap",
        "--x",
    ]


def test_a_claim_is_mounted_read_only_where_the_command_looks() -> None:
    assert find_model_path("pvc://models/a/b") == f"{contract.MODEL_MOUNT}/a/b"
    for template in read_templates(build(parse_deployment(TWO_NODES))):
        volume = {"name": "model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
        assert volume in template["spec"]["volumes"]
        mount = {"name": "model", "mountPath": contract.MODEL_MOUNT, "readOnly": True}
        assert mount in template["spec"]["containers"][0]["volumeMounts"]


def test_the_longest_names_fit() -> None:
    longest = "a" * (names.MAX_DEPLOYMENT_AND_ROLE - 4)
    group = names.build_group_name(longest, "main", "r" * 8, 99, names.MAX_INCARNATION)
    assert len(f"{group}-worker-99") == 63
    assert len(f"{group}-launcher") <= 63


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_an_example_becomes_a_service_and_its_groups(path: object) -> None:
    item = yaml.safe_load(path.read_text())  # type: ignore[attr-defined]
    kinds = [manifest["kind"] for manifest in plan_document(item)]
    assert kinds == ["Service", *["MPIJob"] * item["spec"]["replicas"]]
