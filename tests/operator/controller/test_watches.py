"""Every kind of child that the operator is given is watched: core kinds by kopf, the others by threads."""

import asyncio
import threading
from collections.abc import Iterator
from queue import Queue

import pytest

from lockstep_operator import names
from lockstep_operator.children.registry import CHILDREN
from lockstep_operator.controller.childwatch import SELECTOR, start_child_watches
from lockstep_operator.controller.controller import Controller
from lockstep_operator.controller.event_source import build_registry, build_settings, list_core_kinds
from lockstep_operator.groups.state import Key
from lockstep_operator.kinds import Kind, Object
from lockstep_operator.settings import Settings
from support.cluster.more_children import LEASE, SETTINGS
from support.worlds.stored import Stored

GIVEN = (*CHILDREN, SETTINGS, LEASE)
PLURALS = {"services", "configmaps", "pods"}


class Woken(Controller):
    """Only takes note of who is woken."""

    def __init__(self) -> None:
        self.keys: list[Key] = []

    def wake(self, key: Key) -> None:
        self.keys.append(key)


class Watched(Stored):
    """Yields one object of each kind that is watched."""

    def watch(self, kind: Kind, namespace: str | None, selector: str) -> Iterator[Object]:
        assert selector == SELECTOR
        labels = {names.LABEL_DEPLOYMENT: f"of-{kind.plural}"}
        yield {"metadata": {"namespace": namespace or "any", "labels": labels}}
        threading.Event().wait()  # as a watch in which nothing happens


def test_core_kinds_are_brought_by_kopf_which_selects_children_only() -> None:
    assert {kind.plural for kind in list_core_kinds(GIVEN)} == PLURALS
    selectors = build_settings(Settings(), GIVEN).watching.label_selectors
    assert {plural: selectors["v1", plural] for plural in PLURALS} == dict.fromkeys(PLURALS, SELECTOR)


async def call(handler: object, body: Object) -> None:
    await handler(body=body)  # type: ignore[operator]


def test_an_event_of_each_core_kind_wakes_the_deployment_that_it_is_labelled_with() -> None:
    controller = Woken()
    handlers = {str(handler.id): handler for handler in build_registry(controller, GIVEN)._watching.get_all_handlers()}
    assert set(handlers) > PLURALS
    body = {"metadata": {"namespace": "here", "labels": {names.LABEL_DEPLOYMENT: "recall"}}}
    asyncio.run(call(handlers["configmaps"].fn, body))
    assert controller.keys == [("here", "recall")]


@pytest.mark.parametrize(
    ("namespaces", "places"), [((), ["any"]), (("a", "b"), ["a", "b"])], ids=["all namespaces", "some namespaces"]
)
def test_each_other_kind_has_a_watch_of_its_own(namespaces: tuple[str, ...], places: list[str]) -> None:
    woken: Queue[Key] = Queue()
    start_child_watches(Watched({}), namespaces, woken.put, GIVEN)
    keys = {woken.get(timeout=10) for _ in range(2 * len(places))}
    assert keys == {(place, f"of-{plural}") for place in places for plural in ("mpijobs", "leases")}
    assert woken.empty()
