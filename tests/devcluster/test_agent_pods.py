# ruff: noqa: F811 (a fixture's name is imported, and a parameter)
import json
import os
import signal
import time
from pathlib import Path

import pytest

from devcluster.control.cluster import Cluster
from devcluster.nodes.images import WORKER_IMAGE
from devcluster.paths import ROOT
from lockstep_worker.contract import BUNDLED_MODEL, IMAGE_ROOT, USER_HOME, USER_NAME
from support.cluster.agent_pods import AgentPods, Object, is_ready, nodes, pods, processes, state  # noqa: F401

pytestmark = [pytest.mark.cluster, pytest.mark.e2e]


def test_nodes_are_ready_and_offer_their_gpus(nodes: Cluster) -> None:
    listed = json.loads(nodes.kubectl("get", "nodes", "-o", "json"))["items"]
    assert [node["status"]["allocatable"]["nvidia.com/gpu"] for node in listed] == ["4", "4"]
    assert all("nvidia.com/gpu.clique" in node["metadata"]["labels"] for node in listed)
    nodes.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=5s")


def test_exit_code_and_termination_message_reach_the_status(pods: AgentPods) -> None:
    pods.create("fails", "echo so sorry > /dev/termination-log; exit 7")
    ended = pods.wait_ended("fails")
    assert ended["status"]["phase"] == "Failed"
    terminated = state(ended)["terminated"]
    assert (terminated["exitCode"], terminated["message"], terminated["reason"]) == (7, "so sorry\n", "Error")


def test_environment_comes_from_every_kind_of_source(pods: AgentPods) -> None:
    pods.apply("ConfigMap", "settings", data={"colour": "blue", "shape": "round"})
    pods.apply("Secret", "hidden", stringData={"word": "sesame"})
    env = [
        {"name": "PLAIN", "value": "one"},
        {"name": "JOINED", "value": "$(PLAIN)-$(WORD)-$$(PLAIN)-$(NOBODY)"},
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "word"}}},
        {"name": "LATER", "value": "$(WORD)"},
        {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}},
        {"name": "ABSENT", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "x", "optional": True}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
    ]
    container = {
        "env": env,
        "envFrom": [{"prefix": "all_", "configMapRef": {"name": "settings"}}],
        "resources": {"limits": {"memory": "64Mi"}},
    }
    lines = pods.run("env", "env", container=container).splitlines()
    seen = dict(line.split("=", 1) for line in lines)
    pod = pods.get("env")
    assert (seen["JOINED"], seen["LATER"]) == ("one-$(WORD)-$(PLAIN)-$(NOBODY)", "sesame")
    assert (seen["COLOUR"], seen["all_shape"], seen["MEMORY"]) == ("blue", "round", "64")
    assert (seen["NODE"], seen["ADDRESS"]) == (pod["spec"]["nodeName"], pod["status"]["podIP"])
    assert seen["KUBERNETES_SERVICE_HOST"] == "10.96.0.1"
    assert "ABSENT" not in seen


def test_volumes_show_configmaps_secrets_and_the_pod_itself_to_another_user(pods: AgentPods) -> None:
    pods.apply("ConfigMap", "settings", data={"a.txt": "alpha", "b.txt": "beta"})
    pods.apply("Secret", "key", stringData={"id": "private"})
    volumes = [
        {"name": "config", "configMap": {"name": "settings", "items": [{"key": "b.txt", "path": "deep/b"}]}},
        {"name": "one", "configMap": {"name": "settings"}},
        {"name": "key", "secret": {"secretName": "key", "defaultMode": 0o400}},
        {"name": "self", "downwardAPI": {"items": [{"path": "app", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]
    mounts = [
        {"name": "config", "mountPath": "/data/config"},
        {"name": "one", "mountPath": "/etc/one.txt", "subPath": "a.txt"},
        {"name": "key", "mountPath": "/home/lockstep/.ssh", "readOnly": True},
        {"name": "self", "mountPath": "/self"},
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "memory", "mountPath": "/memory"},
    ]
    script = """set -e
    cat /data/config/deep/b /etc/one.txt /home/lockstep/.ssh/id /self/app; echo
    stat -c '%u %g %a' /home/lockstep/.ssh/id
    id -u; id -G; touch /scratch/mine /memory/mine; df --output=fstype /memory | tail -1
    if touch /cannot 2>/dev/null || touch /data/config/x 2>/dev/null; then exit 1; fi
    if ls /root/.ssh 2>/dev/null; then exit 2; fi
    """
    context = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000}
    container = {"volumeMounts": mounts, "securityContext": {"readOnlyRootFilesystem": True}}
    printed = pods.run("reader", script, container=container, volumes=volumes, securityContext=context)
    assert printed.splitlines() == ['betaalphaprivateapp="reader"', "0 2000 440", "1000", "1000 2000", "tmpfs"]


def test_the_service_accounts_token_authenticates_through_the_kubernetes_service(pods: AgentPods) -> None:
    pods.kubectl("create", "rolebinding", "look", "--clusterrole=view", f"--serviceaccount={pods.namespace}:default")
    script = """cd /var/run/secrets/kubernetes.io/serviceaccount
    curl -sf --cacert ca.crt -H "Authorization: Bearer $(cat token)" --max-time 20 \
      "https://kubernetes.default.svc/api/v1/namespaces/$(cat namespace)/pods/$HOSTNAME" | grep '"uid"'"""
    printed = pods.run("asks", script, securityContext={"runAsUser": 1000})
    assert pods.get("asks")["metadata"]["uid"] in printed


def test_pods_reach_each_other_by_address_by_service_and_by_name(pods: AgentPods) -> None:
    ports = [{"name": "web", "containerPort": 80}]
    serve = "echo here > /tmp/index.html; cd /tmp; exec python -m http.server 80"
    for number in (1, 2):
        pods.create(
            f"server-{number}",
            serve,
            container={"ports": ports, "readinessProbe": http_probe("web")},
            nodeName=f"node-{number}",
        )
    pods.apply("Service", "web", spec={"selector": {"app": "server-2"}, "ports": [{"port": 8080, "targetPort": "web"}]})
    pods.wait_ready("server-1")
    target = pods.wait_ready("server-2")["status"]["podIP"]
    pods.kubectl("wait", "--for=create", "endpointslice", "-l", "kubernetes.io/service-name=web", "--timeout=20s")
    own = pods.namespace
    script = f"""for url in {target}:80 web:8080 web.{own}.svc:8080 $WEB_SERVICE_HOST:8080
    do curl -sf --retry 20 --retry-delay 1 --retry-all-errors --max-time 10 $url/index.html || exit 1; done"""
    assert pods.run("client", script, nodeName="node-1") == "here\n" * 4


def test_readiness_probe_gates_ready(pods: AgentPods) -> None:
    probe = {"exec": {"command": ["test", "-e", "/tmp/open"]}, "periodSeconds": 1, "failureThreshold": 1000}
    script = "while [ ! -e /gate/open ]; do sleep 0.1; done; touch /tmp/open; exec sleep 600"
    mounts, gate = (
        [{"name": "gate", "mountPath": "/gate"}],
        {"name": "gate", "configMap": {"name": "gate", "optional": True}},
    )
    pods.create("gated", script, container={"readinessProbe": probe, "volumeMounts": mounts}, volumes=[gate])
    running = pods.wait("gated", lambda pod: pod["status"]["phase"] == "Running")
    time.sleep(2)
    assert not is_ready(pods.get("gated")) and "running" in state(running)
    pods.apply("ConfigMap", "gate", data={"open": ""})
    pods.wait_ready("gated")


def test_a_failed_liveness_probe_restarts_the_container(pods: AgentPods) -> None:
    probe = {"httpGet": {"path": "/", "port": 1234}, "periodSeconds": 1, "failureThreshold": 2}
    pods.create(
        "deaf",
        "trap 'exit 9' TERM; while true; do sleep 0.1; done",
        container={"livenessProbe": probe},
        restartPolicy="Always",
    )
    pod = pods.wait("deaf", lambda pod: pod["status"].get("containerStatuses", [{}])[0].get("restartCount", 0) >= 1)
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 9


def test_init_containers_run_first_and_a_failing_container_is_restarted(pods: AgentPods) -> None:
    shared = [{"name": "shared", "mountPath": "/shared"}]
    init = [
        {
            "name": f"init-{n}",
            "image": "any:dev",
            "command": ["sh", "-c", f"echo {n} >> /shared/order"],
            "volumeMounts": shared,
        }
        for n in (1, 2)
    ]
    script = "cat /shared/order; [ -e /shared/again ] && exit 0; touch /shared/again; exit 1"
    volumes = [{"name": "shared", "emptyDir": {}}]
    container = {"volumeMounts": shared}
    pods.create("ordered", script, container=container, volumes=volumes, initContainers=init, restartPolicy="OnFailure")
    pod = pods.wait_ended("ordered")
    assert pod["status"]["phase"] == "Succeeded"
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 1
    assert pods.log("ordered") == "1\n2\n1\n2\n"


def test_deletion_sends_sigterm_and_removes_the_pod(pods: AgentPods) -> None:
    pods.create("polite", "trap 'echo bye; exit 0' TERM; echo up; while true; do sleep 0.1; done")
    pods.wait_ready("polite")
    pods.kubectl("delete", "pod", "polite", "--timeout=20s")
    assert pods.log("polite") == "up\nbye\n"


def test_a_container_that_ignores_sigterm_is_killed_after_its_grace(pods: AgentPods) -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hook >> /proc/1/fd/1"]}}}
    pods.create("stubborn", "trap '' TERM; echo up; while true; do sleep 0.1; done", container={"lifecycle": hook})
    pods.wait_ready("stubborn")
    began = time.monotonic()
    pods.kubectl("delete", "pod", "stubborn", "--timeout=60s")
    assert time.monotonic() - began >= 2
    assert pods.log("stubborn") == "up\nhook\n"


def test_a_deadline_fails_the_pod(pods: AgentPods) -> None:
    pods.create("slow", "exec sleep 600", activeDeadlineSeconds=2)
    status = pods.wait_ended("slow")["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")


def test_a_missing_secret_holds_the_container_until_it_is_there(pods: AgentPods) -> None:
    pods.create("waits", "echo $WORD", container={"envFrom": [{"secretRef": {"name": "late"}}]})
    pod = pods.wait(
        "waits",
        lambda pod: (
            "waiting" in pod["status"].get("containerStatuses", [{"state": {}}])[0]["state"]
            and state(pod)["waiting"]["reason"] == "CreateContainerConfigError"
        ),
    )
    assert 'secret "late" not found' in state(pod)["waiting"]["message"]
    pods.apply("Secret", "late", stringData={"WORD": "here"})
    pods.wait_ended("waits")
    assert pods.log("waits") == "here\n"


def test_nothing_of_a_pod_is_left_behind(pods: AgentPods) -> None:
    pods.create("leaves", "touch /left-here /etc/left-here; exec sleep 600", container={"name": "main"})
    uid = pods.wait_ready("leaves")["metadata"]["uid"]
    pods.kubectl("delete", "pod", "leaves", "--timeout=20s")
    assert not Path("/left-here").exists() and not Path("/etc/left-here").exists()
    assert not (pods.cluster.state / "pods" / "pods" / uid).exists()


def test_a_pod_that_waits_for_a_volume_can_be_deleted(pods: AgentPods) -> None:
    pods.create("stuck", "exit 0", volumes=[{"name": "v", "secret": {"secretName": "never"}}])
    pod = pods.wait("stuck", lambda pod: "never" in json.dumps(pod["status"]))
    assert state(pod)["waiting"]["reason"] == "ContainerCreating"
    pods.kubectl("delete", "pod", "stuck", "--timeout=20s")


def test_containers_of_a_pod_share_network_host_name_and_memory(pods: AgentPods) -> None:
    serve = "hostname > /dev/shm/name; cd /dev/shm; exec python -m http.server 8080 --bind 127.0.0.1"
    other = {"name": "server", "image": "any:dev", "command": ["sh", "-c", serve]}
    script = """until curl -sf 127.0.0.1:8080/name; do sleep 0.2; done; cat /dev/shm/name; hostname"""
    main = {"name": "main", "image": "any:dev", "command": ["sh", "-c", script]}
    pods.create("twins", "", containers=[main, other])
    pods.wait("twins", lambda pod: pods.log("twins").count("twins") == 3)


def test_a_killed_container_ends_with_137(pods: AgentPods) -> None:
    word = "a-process-that-the-test-kills"
    pods.create("victim", f"while true; do sleep 0.2; done # {word}")
    pods.wait_ready("victim")
    (main,) = [pid for pid in processes(word) if child_of_bubblewrap(pid)]
    os.kill(main, signal.SIGKILL)
    assert state(pods.wait_ended("victim"))["terminated"]["exitCode"] == 137


def test_the_worker_image_runs_the_projects_python_and_hides_the_machine(pods: AgentPods, tmp_path: Path) -> None:
    hidden = [tmp_path, ROOT / "tests", ROOT / "pyproject.toml"]
    assert all(path.exists() for path in hidden)
    script = f"""set -e
    python -c 'import mpi4py, lockstep_worker, sys; print(sys.prefix)'
    lockstep-worker --help | head -1
    id -un; pwd; touch "$HOME/mine" /tmp/mine
    ls {BUNDLED_MODEL}/config.json
    for path in {" ".join(map(str, hidden))}; do if [ -e "$path" ]; then echo "$path is visible"; fi; done
    cat /etc/shadow 2>/dev/null || echo unreadable"""
    printed = pods.run("image", script, container={"image": WORKER_IMAGE}).splitlines()
    assert printed[0] == IMAGE_ROOT and printed[1].startswith("usage: lockstep-worker")
    assert printed[2:] == [USER_NAME, USER_HOME, f"{BUNDLED_MODEL}/config.json", "unreadable"]


def child_of_bubblewrap(pid: int) -> bool:
    parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    return Path(f"/proc/{parent}/comm").read_text() == "bwrap\n"


def http_probe(port: str | int) -> Object:
    return {"httpGet": {"path": "/", "port": port}, "periodSeconds": 1}
