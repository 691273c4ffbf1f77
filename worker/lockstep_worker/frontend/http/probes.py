"""Routes for those who run the server: is it alive, is it ready, drain it, what does it measure."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import PlainTextResponse, Response

from lockstep_worker.contract import DRAIN_PATH, HEALTH_PATH, METRICS_PATH, READY_PATH
from lockstep_worker.frontend.http.routes import Parts
from lockstep_worker.frontend.schema.responses import DrainResponse, ErrorResponse, HealthResponse

router = APIRouter()


@router.get(HEALTH_PATH)
async def show_health() -> HealthResponse:
    """The process answers."""
    return HealthResponse()


@router.get(READY_PATH, responses={503: {"model": ErrorResponse}})
async def show_ready(service: Parts) -> HealthResponse:
    """The ranks have shown progress lately, and new work is taken."""
    if (reason := service.lifecycle.refusal() or service.engine.stalled()) is not None:
        raise reason
    return HealthResponse()


@router.get(DRAIN_PATH)
async def show_drain(service: Parts) -> DrainResponse:
    """Tell whether new work is refused, and how many requests are in flight."""
    return DrainResponse(draining=service.lifecycle.is_draining, in_flight=service.engine.num_open)


@router.post(DRAIN_PATH, status_code=202, responses={401: {"model": ErrorResponse}})
async def start_drain(service: Parts) -> DrainResponse:
    """Refuse new work from now on; what is in flight goes on. The process ends on SIGTERM."""
    service.lifecycle.start_draining()
    return DrainResponse(draining=True, in_flight=service.engine.num_open)


@router.get(METRICS_PATH, response_class=PlainTextResponse)
async def show_metrics(service: Parts) -> Response:
    """The frontend's metrics in Prometheus's text format."""
    return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)
