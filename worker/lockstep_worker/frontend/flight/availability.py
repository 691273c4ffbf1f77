"""Whether the ranks can serve: they start, are ready, stall and go on, and may be lost for good. Knows no sequences."""

from __future__ import annotations

import logging
import time

from lockstep_worker.frontend.schema.faults import ApiError
from lockstep_worker.frontend.settings import FrontendSettings
from lockstep_worker.metrics.families import FrontendMetrics
from lockstep_worker.wire.messages import Progress

logger = logging.getLogger(__name__)


class Availability:
    """What the ranks have shown of themselves lately. What is lost stays lost, whatever else they send.

    Args:
        settings: how old the last sign of progress may be.
        metrics: what gateways see of it.
    """

    def __init__(self, settings: FrontendSettings, metrics: FrontendMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._progress_s: float | None = None
        self._lost: ApiError | None = None

    @property
    def is_lost(self) -> bool:
        """Whether they are gone for good."""
        return self._lost is not None

    def unavailable(self) -> ApiError | None:
        """Say why no request can be served now, or None."""
        if self._lost is not None:
            return self._lost
        if self._progress_s is None:
            return ApiError(503, "The engine is still starting.", code="engine_starting")
        return None

    def stalled(self) -> ApiError | None:
        """Say why the engine does not count as ready, or None: it is unavailable, or shows no progress."""
        if (reason := self.unavailable()) is not None or self._progress_s is None:
            return reason
        age_s = time.monotonic() - self._progress_s
        if age_s <= self._settings.ready_timeout_s:
            return None
        return ApiError(503, f"The engine has shown no progress for {age_s:.1f} seconds.", code="engine_stalled")

    def take_progress(self, progress: Progress) -> None:
        """Take a sign of progress; the first one says that they are ready."""
        if self._progress_s is None:
            logger.info("the engine is ready")
            self._metrics.show_cache(
                block_size=self._settings.config.block_size,
                num_blocks=progress.kv_blocks_total,
                prefix_cache=self._settings.config.prefix_cache,
            )
        self._progress_s = time.monotonic()
        self._metrics.gateway_running.set(progress.running)
        self._metrics.gateway_waiting.set(progress.waiting)
        self._metrics.gateway_kv_usage.set(progress.kv_blocks_used / max(progress.kv_blocks_total, 1))

    def lose(self, reason: str) -> ApiError:
        """They are gone: return what every client is told from now on."""
        logger.error("the engine is down: %s", reason)
        self._lost = ApiError(503, f"The engine is down: {reason}", code="engine_down")
        return self._lost
