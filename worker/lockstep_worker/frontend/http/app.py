"""The ASGI application: routes, the guard, and every error as an OpenAI error object. Wiring only."""

from __future__ import annotations

import logging
import sys
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from lockstep_worker.errors import RequestError
from lockstep_worker.frontend.http import probes, routes
from lockstep_worker.frontend.http.document import correct_document
from lockstep_worker.frontend.http.guard import Guard
from lockstep_worker.frontend.http.meter import Meter
from lockstep_worker.frontend.http.service import Service
from lockstep_worker.frontend.schema.faults import ApiError

logger = logging.getLogger(__name__)


def create_app(service: Service) -> ASGIApp:
    """Build the application around its parts."""
    app = FastAPI(
        title="Lockstep",
        summary="The OpenAI API of one group of ranks.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        max_body_size=service.settings.max_body_bytes,
    )
    app.state.service = service
    app.include_router(routes.router)
    app.include_router(probes.router)
    app.add_exception_handler(ApiError, _answer_fault)
    app.add_exception_handler(RequestError, _answer_fault)
    app.add_exception_handler(RequestValidationError, _answer_fault)
    app.add_exception_handler(HTTPException, _answer_fault)
    app.add_exception_handler(Exception, _answer_fault)
    correct_document(app, has_key=service.settings.api_key is not None)
    guarded = Guard(app, service.settings.api_key, service.settings.max_body_bytes)
    return Meter(guarded, frozenset(app.openapi()["paths"]), service.metrics.http_responses_total)


async def _answer_fault(request: Request, error: Exception) -> Response:
    service: Service = request.app.state.service
    fault = find_fault(error, service.settings.max_body_bytes)
    if fault.status == 500:
        logger.error("a request failed", exc_info=error)
    return Response(fault.body(), fault.status, fault.headers, "application/json")


def find_fault(error: Exception, max_body_bytes: int) -> ApiError:
    """Return what the client is told about an error."""
    match error:
        case ApiError():
            return error
        case RequestError():
            return ApiError.of(error)
        case RequestValidationError():
            return _describe_validation(error.errors())
        case HTTPException(status_code=413):
            return ApiError.too_large(max_body_bytes)
        case HTTPException(status_code=400, __cause__=Exception() as cause):
            return ApiError(400, _describe_unreadable(cause))
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=error.headers)
        case _:
            return ApiError(500, "The server failed; its log says why.")


def _describe_unreadable(cause: Exception) -> str:
    """Say why a body could not even be read as JSON."""
    match cause:
        case UnicodeDecodeError():
            return f"The body is not UTF-8: {cause.reason} at byte {cause.start}."
        case RecursionError():
            return "The body is nested too deeply."
        case ValueError():
            return f"The body has a whole number of more than {sys.get_int_max_str_digits()} digits."
        case _:
            return "The body cannot be read."


def _describe_validation(errors: Any) -> ApiError:
    """Name the first field at fault, as `messages.2.role`, and what is wrong with it."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"The body is not JSON: {first['ctx']['error']} at character {first['loc'][-1]}.")
    path = [str(part) for part in first["loc"] if part not in {"body", "header", "[key]"}]
    field = ".".join(path) or None
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{field} is not a field of this request.", field)
    if first["type"] == "field":
        name = ".".join([*path, first["ctx"]["field"]])
        return ApiError(400, f"{name} {first['ctx']['message']}.", name)
    if first["type"] in {"model_attributes_type", "missing"} and field is None:
        return ApiError(400, "The body must be a JSON object, sent as application/json.")
    if first["type"] == "missing":
        return ApiError(400, f"{field} is required.", field)
    message: str = "must be an object" if first["type"] == "model_attributes_type" else first["msg"]
    return ApiError(400, f"{field}: {message}" if field else message, field)
