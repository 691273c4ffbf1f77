"""kopf as the event source: every event puts its deployment's key into the controller's queue.

Only `on.event` handlers exist, so kopf writes nothing: no finalizer, no annotation, no stored diff base.
"""

from __future__ import annotations

from typing import Any

import kopf
from kubernetes import client

from lockstep_operator import names
from lockstep_operator.children.registry import CHILDREN
from lockstep_operator.clients.kube import load_configuration
from lockstep_operator.controller.childwatch import SELECTOR, find_deployment
from lockstep_operator.controller.controller import Controller
from lockstep_operator.kinds import PODS
from lockstep_operator.settings import Settings

CORE_KINDS = (*(child.kind for child in CHILDREN if child.kind.is_core), PODS)
"""Kinds whose events kopf brings; it selects them at the API server, so no other pod is ever received."""


def build_registry(controller: Controller) -> kopf.OperatorRegistry:
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

    for kind in CORE_KINDS:
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


def run(settings: Settings, controller: Controller) -> None:
    """Run kopf until the process is told to end."""
    kopf_settings = kopf.OperatorSettings()
    kopf_settings.scanning.disabled = bool(settings.namespaces)  # a Role cannot watch CRDs and namespaces
    for kind in CORE_KINDS:
        kopf_settings.watching.label_selectors[kind.version, kind.plural] = SELECTOR
    kopf.run(
        registry=build_registry(controller),
        settings=kopf_settings,
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )
