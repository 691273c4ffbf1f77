"""The process's event loop: HTTP server, signals, and the way to the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn

from lockstep_worker import contract
from lockstep_worker.frontend.http.app import create_app
from lockstep_worker.frontend.http.service import Service, build_service
from lockstep_worker.frontend.settings import FrontendSettings
from lockstep_worker.frontend.text.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)

_FLUSH_TIMEOUT_S = 5
"""What slow clients get to read the end of their streams."""
_KEEP_ALIVE_S = 75


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: a signal here means a drain, not a shutdown."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: FrontendSettings) -> int:
    """Serve until the end and return the exit code."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.create_server((settings.host, settings.port), family=family, backlog=2048) as listener:
        # Accepted connections inherit it. asyncio would not set it: a socket made so does not say that it is TCP.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        service = build_service(settings, load_tokenizer(settings.model_path))
        _handle_signals(service)
        server = _Server(_http_config(service))
        gc.freeze()  # what lives as long as the process need not be looked at again
        logger.info("listening on %s:%d", settings.host, settings.port)
        http = asyncio.create_task(server.serve(sockets=[listener]))
        ended = asyncio.create_task(service.lifecycle.ended())
        await asyncio.wait({http, ended}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await http
        service.engine.disconnect()
    return ended.result() if ended.done() else contract.EXIT_FRONTEND


def _http_config(service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(service),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_FLUSH_TIMEOUT_S,
    )


def _handle_signals(service: Service) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.lifecycle.start_ending, service.engine)
    loop.add_signal_handler(
        signal.SIGHUP, service.engine.lose, "its process is gone, and gave no reason", contract.EXIT_FAILED
    )
    # Rank 0 starts this process with SIGTERM blocked, so that one that came too early is taken here.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
