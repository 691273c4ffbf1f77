"""The OpenAPI document, where it must say other than FastAPI would: how errors are answered, and what needs the key."""

from __future__ import annotations

from fastapi import FastAPI

from lockstep_worker.frontend.http.guard import needs_key

_SCHEME = "apiKey"


def correct_document(app: FastAPI, *, has_key: bool) -> None:
    """Correct the document that the app serves.

    Args:
        app: with all its routes.
        has_key: whether clients must send an API key.
    """
    document = app.openapi()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["responses"].pop("422", None)  # what cannot be validated is answered with 400
            if has_key and needs_key(method.upper(), path):
                operation["security"] = [{_SCHEME: []}]
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    if has_key:
        document["components"]["securitySchemes"] = {_SCHEME: {"type": "http", "scheme": "bearer"}}
