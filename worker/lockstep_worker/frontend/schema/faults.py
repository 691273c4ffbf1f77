"""Every way in which a request fails, as the OpenAI error object that the client gets."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from pydantic_core import PydanticCustomError

from lockstep_worker.errors import LockstepError, RequestError

RETRY_AFTER_S = 1
_MAX_CHARS = 1000
"""Names and values that a client sent may be megabytes long; its error repeats only their two ends."""

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 504: "timeout_error"}
_RETRY = {"Retry-After": str(RETRY_AFTER_S)}
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: _RETRY, 503: _RETRY}


class ApiError(LockstepError):
    """A request ends with this answer.

    Args:
        status: the HTTP status.
        message: for the person who sent it.
        param: the field at fault, or None.
        code: a machine-readable word, or None.
        headers: beside those that belong to the status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = {**_HEADERS.get(status, {}), **(headers or {})}

    @classmethod
    def of(cls, error: RequestError) -> ApiError:
        """Turn the error of one request into an answer."""
        return cls(error.status, error.message, error.field)

    @classmethod
    def too_large(cls, max_body_bytes: int) -> ApiError:
        """Say that a body is larger than the server takes."""
        return cls(413, f"The body must have at most {max_body_bytes} bytes.")

    def body(self) -> bytes:
        """Return the error object as JSON; text that is long is cut, and what is not valid Unicode replaced."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return msgspec.json.encode(
            {
                "error": {
                    "message": _printable(self.message),
                    "type": kind,
                    "param": None if self.param is None else _printable(self.param),
                    "code": self.code,
                }
            }
        )


def field_error(field: str, message: str) -> PydanticCustomError:
    """Make what a validator of a whole body raises when one field is at fault; the message follows the field's name."""
    return PydanticCustomError("field", "{field} {message}", {"field": field, "message": message})


def _printable(text: str) -> str:
    if len(text) > _MAX_CHARS:
        text = f"{text[: _MAX_CHARS // 2]} ... {text[-_MAX_CHARS // 2 :]}"
    return text.encode("utf-8", "replace").decode("utf-8")
