"""Everything that a route may need, built once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from lockstep_worker.frontend.flight.drain import Lifecycle
from lockstep_worker.frontend.flight.engine import Engine
from lockstep_worker.frontend.flight.prepare import Preparation
from lockstep_worker.frontend.schema.faults import ApiError
from lockstep_worker.frontend.settings import FrontendSettings
from lockstep_worker.frontend.text.tokenizer import TextTokenizer
from lockstep_worker.metrics.families import FrontendMetrics


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of a running frontend."""

    settings: FrontendSettings
    tokenizer: TextTokenizer
    preparation: Preparation
    engine: Engine
    lifecycle: Lifecycle
    registry: CollectorRegistry
    metrics: FrontendMetrics
    started_s: int = field(default_factory=lambda: int(time.time()))
    """Unix time."""

    def check_model(self, name: str | None) -> None:
        """Check the model that a body names.

        Raises:
            ApiError: 404, it is not served here.
        """
        served = self.settings.served_model_name
        if name is not None and name != served:
            raise ApiError(404, f"The model {name!r} does not exist; {served!r} does.", "model", "model_not_found")

    def check_open(self) -> None:
        """Check that new work is taken.

        Raises:
            ApiError: 503 with the reason.
        """
        if (reason := self.lifecycle.refusal() or self.engine.unavailable()) is not None:
            raise reason


def build_service(settings: FrontendSettings, tokenizer: TextTokenizer) -> Service:
    """Wire the parts together; binds the link's sockets."""
    registry = CollectorRegistry()
    lifecycle = Lifecycle(settings)
    metrics = FrontendMetrics(registry, settings.served_model_name)
    engine = Engine(settings, metrics, on_down=lifecycle.end, on_drained=lifecycle.note_drained)
    return Service(settings, tokenizer, Preparation(settings, tokenizer), engine, lifecycle, registry, metrics)
