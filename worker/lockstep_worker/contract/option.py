"""One option of a configuration: how a dataclass field declares it, reads it from text, and checks it.

This module knows fields, not the configuration that they belong to: `contract.serve` declares them, `config` joins
their sources.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import typing
from collections.abc import Iterator
from types import NoneType
from typing import Any

ENV_PREFIX = "LOCKSTEP_"
BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_PLACEHOLDERS = {int: "N", float: "X", str: "TEXT"}


def declare(default: Any, group: str, about: str, **limits: Any) -> Any:
    """Declare a dataclass field as an option.

    Args:
        default: the value when nobody sets it; `dataclasses.MISSING` makes the option required.
        group: the heading under which `--help` shows it.
        about: one phrase for `--help`, with the unit.
        limits: any of `low`, `above` (exclusive), `high` and `choices`; `metavar` is the value's name in `--help`, and
            `unset` says in words what holds where the default is no value.
    """
    metadata = {"group": group, "about": about, **limits}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """A declared field with its type resolved: one scalar, perhaps optional."""

    name: str
    kind: type[Any]
    optional: bool
    default: Any
    metadata: typing.Mapping[str, Any]

    @property
    def flag(self) -> str:
        """The command line flag, such as `--max-batch-size`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable, such as `LOCKSTEP_MAX_BATCH_SIZE`."""
        return ENV_PREFIX + self.name.upper()

    @property
    def negative(self) -> str:
        """A boolean's other flag, such as `--no-overlap`."""
        return "--no-" + self.flag.removeprefix("--")

    @property
    def written_flag(self) -> str:
        """The one flag that `write` can write: of a boolean, the one that leaves its default."""
        return self.negative if self.default is True else self.flag

    @property
    def default_text(self) -> str:
        """What holds when nobody sets the option, in words; empty where it must be set."""
        if self.default is dataclasses.MISSING:
            return ""
        if "unset" in self.metadata:
            return str(self.metadata["unset"])
        return str(self.default).lower() if self.kind is bool else str(self.default)

    @property
    def placeholder(self) -> str:
        """What stands for the value behind the flag, such as `N`."""
        if choices := self.metadata.get("choices"):
            return "|".join(choices)
        return str(self.metadata.get("metavar", _PLACEHOLDERS[self.kind]))

    def write(self, value: Any) -> list[str]:
        """Write a value as words of a command line; none for None, nor for a boolean's default."""
        if self.kind is bool:
            return [] if value in (None, self.default) else [self.written_flag]
        return [] if value is None else [self.flag, str(value)]

    def read(self, raw: object) -> Any:
        """Turn text, or a value out of a file, into the option's type.

        Raises:
            ValueError: it cannot be; the message says what was wanted.
        """
        if raw is None and self.optional:
            return None
        if isinstance(raw, str) and self.kind is not str:
            try:
                return BOOLEANS[raw.lower()] if self.kind is bool else self.kind(raw)
            except (ValueError, KeyError):
                raise ValueError(f"{raw!r} is not {_WANTED[self.kind]}") from None
        if self.kind is float and type(raw) is int:
            return float(raw)
        if type(raw) is not self.kind:  # exact: True is an int, and 1.0 is no whole number
            raise ValueError(f"{raw!r} is not {_WANTED[self.kind]}")
        return raw

    def fault(self, value: Any) -> str | None:
        """Say what is wrong with a value, naming the field and the limit; None when nothing is."""
        if value is None and self.optional:
            return None
        if type(value) is not self.kind and not (self.kind is float and type(value) is int):
            return f"{self.name}: {value!r} is not {_WANTED[self.kind]}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"{self.name}: {value} is not a finite number"
        if self.kind is str and not value:
            return f"{self.name}: must not be empty"
        return self._beyond_limit(value)

    def _beyond_limit(self, value: Any) -> str | None:
        limits = self.metadata
        if "choices" in limits and value not in limits["choices"]:
            return f"{self.name}: {value!r} is not one of {', '.join(limits['choices'])}"
        if "low" in limits and value < limits["low"]:
            return f"{self.name}: {value} is below the limit, {limits['low']}"
        if "above" in limits and value <= limits["above"]:
            return f"{self.name}: {value} must be above {limits['above']}"
        if "high" in limits and value > limits["high"]:
            return f"{self.name}: {value} is above the limit, {limits['high']}"
        return None

    def argument(self) -> dict[str, Any]:
        """Build the keyword arguments for `add_argument`; values stay text, so that all are judged together."""
        settings: dict[str, Any] = {"help": self._help(), "default": None, "dest": self.name}
        if self.kind is bool:
            return {**settings, "action": argparse.BooleanOptionalAction}
        return {**settings, "metavar": self.placeholder}

    def _help(self) -> str:
        about = self.metadata["about"]
        if self.default is dataclasses.MISSING:
            return f"{about}; required"
        if "unset" in self.metadata:
            return f"{about}; default: {self.default_text}"
        return f"{about} (default: {self.default_text})"


@functools.cache
def options_of(owner: Any) -> dict[str, Option]:
    """Return the options that a dataclass declares, by name, in their order."""
    hints = typing.get_type_hints(owner)
    return {
        field.name: Option(field.name, *_scalar(hints[field.name]), field.default, field.metadata)
        for field in dataclasses.fields(owner)
    }


def faults_of(instance: Any) -> Iterator[str]:
    """Yield what is wrong with each field of a dataclass of options."""
    for option in options_of(instance.__class__).values():
        if fault := option.fault(getattr(instance, option.name)):
            yield fault


def _scalar(hint: Any) -> tuple[type[Any], bool]:
    kinds = typing.get_args(hint) or (hint,)
    return next(kind for kind in kinds if kind is not NoneType), NoneType in kinds
