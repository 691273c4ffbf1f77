"""The time as the API writes it."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """Return the time to the second, as in most fields."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now_micro() -> str:
    """Return the time to the microsecond, as in Leases."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
