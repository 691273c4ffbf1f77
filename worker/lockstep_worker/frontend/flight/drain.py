"""How the process ends: by draining, or because the engine is lost. Decides the exit code; knows no HTTP."""

from __future__ import annotations

import asyncio
import logging

from lockstep_worker import contract
from lockstep_worker.frontend.flight.engine import Engine
from lockstep_worker.frontend.schema.faults import ApiError
from lockstep_worker.frontend.settings import FrontendSettings

logger = logging.getLogger(__name__)

_POLL_S = 0.02


class Lifecycle:
    """The states running, draining, and ended.

    Args:
        settings: how long each part of a drain may last.
    """

    def __init__(self, settings: FrontendSettings) -> None:
        self._settings = settings
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._drained = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_draining = False

    def refusal(self) -> ApiError | None:
        """Say why new work is refused because of the process's state, or None."""
        return ApiError(503, "The server is draining.", code="draining") if self.is_draining else None

    def start_draining(self) -> None:
        """Refuse new work from now on; what is in flight goes on."""
        if not self.is_draining:
            logger.info("draining: new requests are refused")
        self.is_draining = True

    def start_ending(self, engine: Engine) -> None:
        """Drain, then end with exit code 0. Asked a second time, it changes nothing."""
        self.start_draining()
        if self._task is None:
            self._task = asyncio.create_task(self._end(engine))

    def end(self, exit_code: int) -> None:
        """End now; the first exit code counts."""
        if not self._ended.done():
            self._ended.set_result(exit_code)

    def note_drained(self) -> None:
        """The ranks have left their loop: as asked, or else nobody is left to serve."""
        self._drained.set()
        if self._task is None:
            self.end(contract.EXIT_FRONTEND)

    async def ended(self) -> int:
        """Wait for the end and return the exit code."""
        return await asyncio.shield(self._ended)

    async def _end(self, engine: Engine) -> None:
        await self._wait_until_idle(engine)
        if engine.num_open:
            logger.warning("%d requests did not finish in time and are cancelled", engine.num_open)
            engine.end_all("cancelled", ApiError(503, "The server is shutting down.", code="draining"))
        engine.shut_down()
        try:
            await asyncio.wait_for(self._drained.wait(), self._settings.shutdown_timeout_s)
        except TimeoutError:
            logger.warning("the ranks did not leave their loop within %g s", self._settings.shutdown_timeout_s)
        self.end(contract.EXIT_OK)

    async def _wait_until_idle(self, engine: Engine) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.drain_timeout_s
        while engine.num_open and loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
