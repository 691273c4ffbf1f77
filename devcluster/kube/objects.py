"""The type of an API object as JSON has it."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]
"""Any object of the API, for example a Pod: `{"kind": "Pod", "metadata": {...}, ...}`."""
