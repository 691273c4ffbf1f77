"""The operator's own settings, read from the environment once and frozen."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep_operator.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one operator process needs to know."""

    namespaces: tuple[str, ...] = ()
    """Namespaces to watch; empty means all (`WATCH_NAMESPACES`, separated by commas)."""
    log_level: str = "INFO"
    """`LOG_LEVEL`."""
    metrics_host: str = "0.0.0.0"
    """`METRICS_HOST`: where `/metrics` and `/healthz` listen."""
    metrics_port: int = 8080
    """`METRICS_PORT`; 0 takes a free one."""
    resync_s: float = 300.0
    """`RESYNC_SECONDS`: every deployment is looked at again this often, whatever events say."""


def read_settings(env: Mapping[str, str]) -> Settings:
    """Read the settings from an environment.

    Raises:
        SettingsError: lists every variable that is wrong.
    """
    problems: list[str] = []
    settings = Settings(
        namespaces=tuple(name for part in env.get("WATCH_NAMESPACES", "").split(",") if (name := part.strip())),
        log_level=_read_level(env, problems),
        metrics_host=env.get("METRICS_HOST", "0.0.0.0"),
        metrics_port=int(_read_number(env, "METRICS_PORT", 8080, 0, 65535, problems)),
        resync_s=_read_number(env, "RESYNC_SECONDS", 300, 5, 86400, problems),
    )
    if problems:
        raise SettingsError(problems)
    return settings


def _read_level(env: Mapping[str, str], problems: list[str]) -> str:
    level = env.get("LOG_LEVEL", "INFO").upper()
    if level not in logging.getLevelNamesMapping():
        problems.append(f"LOG_LEVEL: {level!r} is not one of DEBUG, INFO, WARNING, ERROR")
    return level


def _read_number(
    env: Mapping[str, str], name: str, default: float, low: float, high: float, problems: list[str]
) -> float:
    text = env.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        problems.append(f"{name}: {text!r} is not a number from {low:g} to {high:g}")
        return default
    return value
