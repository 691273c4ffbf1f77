"""Pure: a container's environment and its command line, by the kubelet's rules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devcluster.agent.decisions.downward import read_field, read_resource
from devcluster.agent.decisions.sources import Sources
from devcluster.agent.errors import ConfigError
from devcluster.kube.objects import Object

REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a container's environment may speak of besides the pod itself."""

    pod: Object
    sources: Sources
    pod_ip: str
    host_ip: str
    allocatable: Mapping[str, str]


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand `$(NAME)`; an unknown name stays as it is, and `$$` is one dollar sign."""

    def replace(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return variables.get(match[1], match[0])

    return REFERENCE.sub(replace, text)


def build_environment(container: Object, around: Surroundings, image: Mapping[str, str]) -> dict[str, str]:
    """Build the variables: the image's, the Services', `envFrom`, then `env` in order; later ones win.

    Raises:
        ConfigError: a ConfigMap, a Secret or a key that is not optional is missing.
    """
    links = around.pod["spec"].get("enableServiceLinks", True)
    own: dict[str, str] = service_variables(around.sources.services, links=links)
    for source in container.get("envFrom", []):
        own |= _from_whole(source, around.sources)
    for variable in container.get("env", []):
        value = _value(variable, container, around, own)
        if value is not None:
            own[variable["name"]] = value
    return {**image, **own}


def build_command(container: Object, entrypoint: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Join command and arguments: a container's own command takes the place of the image's entrypoint.

    Raises:
        ConfigError: neither the container nor the image says what to run.
    """
    command = container.get("command") or list(entrypoint)
    words = [*command, *container.get("args", [])]
    if not words:
        raise ConfigError(f"container {container['name']}: neither command nor args, and the image has no entrypoint")
    return tuple(expand(word, variables) for word in words)


def service_variables(services: Sequence[Object], *, links: bool) -> dict[str, str]:
    """Build the variables that name Services; without `links` only those of the API server."""
    variables: dict[str, str] = {}
    for service in services:
        metadata, spec = service["metadata"], service["spec"]
        is_api = (metadata["namespace"], metadata["name"]) == ("default", "kubernetes")
        if spec.get("clusterIP", "None") != "None" and spec.get("ports") and (links or is_api):
            variables |= _service_links(metadata["name"], spec)
    return variables


def _service_links(name: str, spec: Object) -> dict[str, str]:
    prefix, address = name.upper().replace("-", "_"), spec["clusterIP"]
    ports = spec["ports"]
    first = ports[0]
    variables = {
        f"{prefix}_SERVICE_HOST": address,
        f"{prefix}_SERVICE_PORT": str(first["port"]),
        f"{prefix}_PORT": f"{first.get('protocol', 'TCP').lower()}://{address}:{first['port']}",
    }
    for port in ports:
        protocol, number = port.get("protocol", "TCP"), str(port["port"])
        if port.get("name"):
            variables[f"{prefix}_SERVICE_PORT_{port['name'].upper().replace('-', '_')}"] = number
        one = f"{prefix}_PORT_{number}_{protocol}"
        variables[one] = f"{protocol.lower()}://{address}:{number}"
        variables |= {f"{one}_PROTO": protocol.lower(), f"{one}_PORT": number, f"{one}_ADDR": address}
    return variables


def _from_whole(source: Object, sources: Sources) -> dict[str, str]:
    """Take all keys of one ConfigMap or Secret."""
    kind = "configmap" if "configMapRef" in source else "secret"
    reference = source.get("configMapRef") or source["secretRef"]
    data = sources.entry(kind, reference["name"], optional=reference.get("optional", False))
    return {source.get("prefix", "") + key: value.decode() for key, value in data.items()}


def _value(variable: Object, container: Object, around: Surroundings, known: Mapping[str, str]) -> str | None:
    """Find one variable's value; None leaves it out."""
    origin = variable.get("valueFrom")
    if not origin:
        return expand(variable.get("value") or "", known)
    if field := origin.get("fieldRef"):
        return read_field(around.pod, field["fieldPath"], pod_ip=around.pod_ip, host_ip=around.host_ip)
    if resource := origin.get("resourceFieldRef"):
        return read_resource(around.pod, resource, container, around.allocatable)
    kind = "configmap" if "configMapKeyRef" in origin else "secret"
    reference = origin.get("configMapKeyRef") or origin["secretKeyRef"]
    optional = reference.get("optional", False)
    data = around.sources.entry(kind, reference["name"], optional=optional)
    if reference["key"] not in data and not optional:
        raise ConfigError(f"couldn't find key {reference['key']} in {kind} {reference['name']}")
    found = data.get(reference["key"])
    return None if found is None else found.decode()
