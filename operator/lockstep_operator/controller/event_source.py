"""kopf as the event source: every event puts its deployment's key into the controller's queue.

Only `on.event` handlers exist, so kopf writes nothing: no finalizer, no annotation, no stored diff base.
"""

from __future__ import annotations

from typing import Any

import kopf
from kubernetes import client

from lockstep_operator import names
from lockstep_operator.children.child import Child
from lockstep_operator.clients.kube import load_configuration
from lockstep_operator.controller.childwatch import SELECTOR, find_deployment
from lockstep_operator.controller.controller import Controller
from lockstep_operator.kinds import PODS, Kind
from lockstep_operator.settings import Settings


def list_core_kinds(children: tuple[Child, ...]) -> tuple[Kind, ...]:
    """List the kinds whose events kopf brings; `childwatch` brings those of the other children."""
    return (*(child.kind for child in children if child.kind.is_core), PODS)


def build_registry(controller: Controller, children: tuple[Child, ...]) -> kopf.OperatorRegistry:
    """Build kopf's registry: which events wake which deployment."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.watching.server_timeout = 240
        settings.watching.client_timeout = 270
        settings.watching.connect_timeout = 10
        settings.networking.request_timeout = 30
        await controller.start()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return build_connection(load_configuration())

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await controller.stop()

    @kopf.on.event(names.API_GROUP, names.API_VERSION, names.PLURAL, registry=registry)
    async def on_deployment(namespace: str, name: str, **_: Any) -> None:
        controller.wake((namespace, name))

    async def on_child(body: kopf.Body, **_: Any) -> None:
        controller.wake(find_deployment(dict(body)))

    for kind in list_core_kinds(children):
        kopf.on.event(kind.version, kind.plural, registry=registry, id=kind.plural)(on_child)
    return registry


def build_connection(configuration: client.Configuration) -> kopf.ConnectionInfo:
    """Give kopf the credentials that our own client has; kopf asks again when they are refused."""
    token = configuration.auth_settings().get("BearerToken")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        token=token["value"].removeprefix("Bearer ").removeprefix("bearer ") if token else None,
        scheme="Bearer" if token else None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )


def build_settings(settings: Settings, children: tuple[Child, ...]) -> kopf.OperatorSettings:
    """Build kopf's settings; it selects children at the API server, so no other pod is ever received."""
    kopf_settings = kopf.OperatorSettings()
    kopf_settings.scanning.disabled = bool(settings.namespaces)  # a Role cannot watch CRDs and namespaces
    for kind in list_core_kinds(children):
        kopf_settings.watching.label_selectors[kind.version, kind.plural] = SELECTOR
    return kopf_settings


def run(settings: Settings, controller: Controller, children: tuple[Child, ...]) -> None:
    """Run kopf until the process is told to end."""
    kopf.run(
        registry=build_registry(controller, children),
        settings=build_settings(settings, children),
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )
