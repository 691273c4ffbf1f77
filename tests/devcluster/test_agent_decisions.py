import argparse
import ipaddress
from pathlib import Path
from typing import Any

import pytest

from devcluster.agent.decisions import etc, sandbox, volumes
from devcluster.agent.decisions.downward import parse_quantity, read_field, read_resource
from devcluster.agent.decisions.environment import (
    Surroundings,
    build_command,
    build_environment,
    expand,
    service_variables,
)
from devcluster.agent.decisions.security import container_identity
from devcluster.agent.decisions.sources import Sources, find_references, find_token_requests
from devcluster.agent.decisions.status import (
    ContainerStatus,
    PodView,
    Running,
    Terminated,
    Waiting,
    build_pod_status,
    pod_phase,
    restart_delay_s,
    should_restart,
)
from devcluster.agent.errors import AgentError, ConfigError, UnsupportedPod
from devcluster.agent.images import Image
from devcluster.agent.machine import files, network
from devcluster.agent.machine.probes import ProbeTracker
from devcluster.agent.settings import parse_node

Object = dict[str, Any]
IMAGE = Image(layers=(), binds=(), env={"PATH": "/bin"}, entrypoint=("run",), user=1000, workdir="/")
RUNNING = ContainerStatus("a", "i", Running("t"), started=True, ready=True)
WAITING = ContainerStatus("b", "i")


def ended(code: int) -> ContainerStatus:
    return ContainerStatus("c", "i", Terminated(code, "Error", "", "t", "t", "id"))


def view(
    policy: str, *main: ContainerStatus, init: tuple[ContainerStatus, ...] = (), is_ended: bool = False
) -> PodView:
    return PodView(policy, init, main, generation=3, host_ip="10.0.0.1", start_time="t", ended=is_ended)


def pod(**spec: Any) -> Object:
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "labels": {"app": "x", "b": 'say "hi"'}}
    return {"metadata": metadata, "spec": {"containers": [], **spec}}


def around(the_pod: Object | None = None, **sources: Any) -> Surroundings:
    return Surroundings(the_pod or pod(), Sources(**sources), "10.1.0.2", "10.0.0.1", {"cpu": "2", "memory": "1Gi"})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("$(A)/$(B)", "1/2"),
        ("$$(A)", "$(A)"),
        ("$(C) $A $", "$(C) $A $"),
        ("$$$(A)", "$1"),
        ("$(A", "$(A"),
    ],
)
def test_references_to_variables_are_expanded(text: str, wanted: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == wanted


def test_later_sources_of_the_environment_win() -> None:
    container = {
        "name": "c",
        "envFrom": [{"configMapRef": {"name": "m"}}],
        "env": [{"name": "PATH", "value": "/own:$(FROM)"}],
    }
    data = {"m": {"FROM": b"map", "PATH": b"/map"}}
    assert build_environment(container, around(configmaps=data), IMAGE.env) == {"FROM": "map", "PATH": "/own:map"}


def test_a_missing_key_says_which() -> None:
    key = {"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    with pytest.raises(ConfigError, match="key k in secret s"):
        build_environment({"name": "c", "env": [key]}, around(secrets={"s": {}}), {})


def test_only_the_api_servers_variables_stay_without_service_links() -> None:
    ports = [{"name": "web-ui", "port": 80}]
    services = [
        {"metadata": {"namespace": space, "name": name}, "spec": {"clusterIP": "10.0.0.9", "ports": ports}}
        for space, name in (("ns", "my-web"), ("default", "kubernetes"))
    ]
    linked = service_variables(services, links=True)
    assert linked["MY_WEB_PORT"] == "tcp://10.0.0.9:80" and linked["MY_WEB_SERVICE_PORT_WEB_UI"] == "80"
    alone = service_variables(services, links=False)
    assert alone["KUBERNETES_SERVICE_HOST"] == "10.0.0.9" and not any(name.startswith("MY_") for name in alone)


def test_a_command_takes_the_entrypoints_place_and_arguments_follow_it() -> None:
    assert build_command({"args": ["$(A)"]}, ["run"], {"A": "1"}) == ("run", "1")
    assert build_command({"command": ["x"], "args": ["y"]}, ["run"], {}) == ("x", "y")
    with pytest.raises(ConfigError, match="neither command nor args"):
        build_command({"name": "c"}, [], {})


def test_the_downward_api_reads_fields_and_resources() -> None:
    one = pod(nodeName="n")
    ips = {"pod_ip": "10.1.0.2", "host_ip": "10.0.0.1"}
    assert read_field(one, "metadata.labels['app']", **ips) == "x"
    assert read_field(one, "metadata.annotations['none']", **ips) == ""
    assert read_field(one, "metadata.labels", **ips) == 'app="x"\nb="say \\"hi\\""'
    with pytest.raises(ConfigError, match=r"spec\.bogus"):
        read_field(one, "spec.bogus", **ips)
    container = {"resources": {"limits": {"cpu": "1500m"}}}
    given = {"cpu": "2", "memory": "1Gi"}
    assert read_resource(one, {"resource": "limits.cpu", "divisor": "0"}, container, given) == "2"
    assert read_resource(one, {"resource": "limits.cpu", "divisor": "1m"}, container, given) == "1500"
    assert read_resource(one, {"resource": "limits.memory"}, container, given) == str(2**30)


def test_a_quantity_that_is_none_is_refused() -> None:
    assert parse_quantity("1e3") == parse_quantity("1k") == 1000
    with pytest.raises(ConfigError, match="3 bananas"):
        parse_quantity("3 bananas")


def test_what_a_pod_needs_from_the_api_is_found_everywhere() -> None:
    projected = {"sources": [{"serviceAccountToken": {"path": "t"}}, {"configMap": {"name": "ca"}}]}
    one = pod(
        containers=[{"name": "c", "envFrom": [{"secretRef": {"name": "whole"}}]}],
        initContainers=[{"name": "i", "env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "m"}}}]}],
        volumes=[{"name": "v", "secret": {"secretName": "key"}}, {"name": "w", "projected": projected}],
    )
    found = {("secret", "whole"), ("configmap", "m"), ("secret", "key"), ("configmap", "ca")}
    assert set(find_references(one)) == found
    assert list(find_token_requests(one)) == [("", 3600)]


def test_volume_items_pick_keys_paths_and_modes() -> None:
    source = {
        "secretName": "s",
        "defaultMode": 0o400,
        "items": [{"key": "k", "path": "d/k"}, {"key": "no", "path": "n"}],
    }
    with pytest.raises(ConfigError, match="volume v: secret s has no key no"):
        volumes.volume_files({"name": "v", "secret": source}, around(secrets={"s": {"k": b"1"}}))
    made = volumes.volume_files(
        {"name": "v", "secret": {**source, "optional": True}}, around(secrets={"s": {"k": b"1"}})
    )
    assert made == [volumes.File("d/k", b"1", 0o400)]


def test_a_sub_path_cannot_leave_its_volume() -> None:
    mount = {"name": "v", "mountPath": "/m", "subPath": "../other"}
    with pytest.raises(ConfigError, match="leaves the volume"):
        list(
            volumes.container_mounts(
                {"volumeMounts": [mount]}, pod(volumes=[{"name": "v", "emptyDir": {}}]), Path("/v"), {}
            )
        )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"volumes": [{"name": "v", "csi": {}}]}, "volume v: only emptyDir"),
        ({"hostNetwork": True}, "spec.hostNetwork"),
        ({"initContainers": [{"name": "s", "restartPolicy": "Always"}]}, "initContainers"),
    ],
)
def test_what_the_agent_cannot_do_is_refused_by_name(spec: Object, words: str) -> None:
    with pytest.raises(UnsupportedPod, match=words):
        volumes.check_pod(pod(**spec))


def test_the_containers_own_security_context_goes_first() -> None:
    whole = pod(securityContext={"runAsUser": 5, "fsGroup": 9, "supplementalGroups": [7]})
    assert container_identity(whole, {}, IMAGE) == sandbox.Identity(5, 0, (7, 9))
    assert container_identity(whole, {"securityContext": {"runAsUser": 6, "runAsGroup": 8}}, IMAGE).uid == 6
    assert container_identity(pod(), {}, IMAGE).uid == 1000
    root = {"securityContext": {"runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}}
    assert container_identity(pod(), root, IMAGE).capabilities == ("net_admin",)
    with pytest.raises(ConfigError, match="runAsNonRoot"):
        container_identity(pod(securityContext={"runAsNonRoot": True, "runAsUser": 0}), {}, IMAGE)


@pytest.mark.parametrize(
    ("one", "phase"),
    [
        (view("Always", RUNNING, WAITING), "Pending"),
        (view("Always", RUNNING, ended(1)), "Running"),
        (view("Never", ended(0), ended(1)), "Running"),
        (view("Never", ended(0), ended(0), is_ended=True), "Succeeded"),
        (view("Never", ended(0), ended(1), is_ended=True), "Failed"),
        (view("Never", WAITING, is_ended=True), "Failed"),
        (view("Never", RUNNING, init=(ended(1),)), "Pending"),
        (view("Never", RUNNING, init=(ended(0),)), "Running"),
    ],
)
def test_phase_follows_the_containers(one: PodView, phase: str) -> None:
    assert pod_phase(one) == phase


def test_conditions_keep_their_time_until_they_change() -> None:
    before = build_pod_status(view("Always", RUNNING), [], "early")["conditions"]
    same = build_pod_status(view("Always", RUNNING), before, "late")["conditions"]
    assert same == before
    changed = build_pod_status(view("Always", ended(1)), before, "late")["conditions"]
    times = {condition["type"]: condition["lastTransitionTime"] for condition in changed}
    assert (times["Initialized"], times["Ready"]) == ("early", "late")


def test_every_status_says_which_generation_it_is_of() -> None:
    status = build_pod_status(view("Always", RUNNING), [], "now")
    assert status["observedGeneration"] == 3
    assert {condition["observedGeneration"] for condition in status["conditions"]} == {3}


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False)],
)
def test_the_policy_decides_about_a_restart(policy: str, code: int, again: bool) -> None:
    assert should_restart(policy, code) is again


def test_back_off_doubles_up_to_five_minutes() -> None:
    assert [restart_delay_s(number) for number in (0, 1, 2, 3, 10)] == [0, 10, 20, 40, 300]


def test_a_probe_changes_its_verdict_only_at_a_threshold() -> None:
    tracker = ProbeTracker({"failureThreshold": 2, "successThreshold": 2}, healthy=False)
    verdicts = [(tracker.observe(result), tracker.healthy) for result in (True, True, False, True, False, False)]
    assert verdicts == [(False, False), (True, True), (False, True), (False, True), (False, True), (True, False)]


def test_addresses_are_not_given_again_at_once_and_run_out_with_a_clear_error() -> None:
    pool = network.AddressPool(ipaddress.IPv4Network("10.1.0.0/29"))
    first = pool.take()
    pool.free(first)
    assert [pool.take() for _ in range(5)] == ["10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6", "10.1.0.2"]
    with pytest.raises(AgentError, match="10.1.0.0/29 has no free address: all 5"):
        pool.take()


def test_the_resolver_follows_the_dns_policy() -> None:
    config = {"searches": ["job.ns.svc.cluster.local"], "options": [{"name": "ndots", "value": "2"}]}
    text = etc.resolver_text(pod(dnsConfig=config), "10.96.0.10")
    search = "search ns.svc.cluster.local svc.cluster.local cluster.local job.ns.svc.cluster.local"
    assert text == f"nameserver 10.96.0.10\n{search}\noptions ndots:2\n"
    alone = {"nameservers": ["10.9.9.9"]}
    assert etc.resolver_text(pod(dnsPolicy="None", dnsConfig=alone), "10.96.0.10") == "nameserver 10.9.9.9\n"


def test_the_hosts_file_names_the_pod_and_its_aliases() -> None:
    aliases = [{"ip": "10.5.5.5", "hostnames": ["a", "b"]}]
    text = etc.hosts_text(pod(hostname="h", subdomain="s", hostAliases=aliases), "10.1.0.2")
    assert text.splitlines()[1:] == ["10.1.0.2 h.s.ns.svc.cluster.local h", "10.5.5.5 a b"]


def test_secrets_stay_out_of_the_command_line() -> None:
    plan = sandbox.ContainerPlan(Path("/c"), ("run",), {"TOKEN": "s3cret"}, "/", sandbox.Identity(1, 1), (), True)
    assert "s3cret" not in " ".join(sandbox.container_command(plan, pause_pid=1, args_fd=3))
    arguments = sandbox.bwrap_arguments(plan, status_fd=4)
    assert arguments[arguments.index("--setenv") + 1 :] == ["TOKEN", "s3cret"]
    assert arguments[arguments.index("--remount-ro") + 1] == "/"


def test_deeper_mounts_come_after_their_parents() -> None:
    mounts = (sandbox.Mount("/x", "/a/b/c"), sandbox.Mount("/y", "/a", read_only=True))
    plan = sandbox.ContainerPlan(Path("/c"), ("run",), {}, "/", sandbox.Identity(1, 1), mounts, False)
    arguments = sandbox.bwrap_arguments(plan, status_fd=4)
    assert arguments.index("/y") < arguments.index("/x")
    assert arguments[arguments.index("/y") - 1] == "--ro-bind"


@pytest.mark.parametrize("text", ["a", "a=10.0.0.1", "a=10.0.0.1,10.1.0.1/24", "a=nowhere,10.1.0.0/24"])
def test_a_wrong_node_flag_says_what_is_wrong(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="node 'a"):
        parse_node(text)


def test_waiting_containers_say_why() -> None:
    status = build_pod_status(view("Always", ContainerStatus("a", "i", Waiting("CrashLoopBackOff", "10s"))), [], "now")
    assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "10s"}}


def test_a_volumes_files_are_replaced_and_removed(tmp_path: Path) -> None:
    files.write_volume(tmp_path, [volumes.File("d/a", b"1", 0o400), volumes.File("b", b"2", 0o644)], None)
    files.write_volume(tmp_path, [volumes.File("d/a", b"3", 0o600)], None)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["d/a"]
    assert (tmp_path / "d/a").read_bytes() == b"3" and (tmp_path / "d/a").stat().st_mode & 0o777 == 0o600
