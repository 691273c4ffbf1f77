"""The type of an API object as JSON has it, and the time as the API writes it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
"""Any object of the API, for example a Pod: `{"kind": "Pod", "metadata": {...}, ...}`."""


def now() -> str:
    """Return the time to the second, as in most fields."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now_micro() -> str:
    """Return the time to the microsecond, as in Leases."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
