"""Fields of the API: a dataclass field says its type, text and limits once; parser, CRD and docs all read it.

Python names are snake_case and appear as camelCase in objects. This module knows nothing of any one field.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Quantity = int | str
"""An amount of a compute resource as Kubernetes writes it: `2`, `500m`, `16Gi`."""
QUANTITY_PATTERN = r"^[+-]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a value may be, apart from its type; `max_length` and `pattern` hold for strings in lists and maps too."""

    text: str = ""
    minimum: float | None = None
    maximum: float | None = None
    max_length: int = 253
    pattern: str | None = None
    enum: tuple[str, ...] | None = None
    max_items: int = 64
    map_key: str | None = None
    """The field by which a list of objects is a map (server-side apply merges by it)."""
    format: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit that spans fields. The API server evaluates `cel`; `check` says the same of a parsed object."""

    cel: str
    message: str
    check: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an object, as parser and schema see it."""

    name: str
    python_name: str
    kind: Any
    optional: bool
    required: bool
    default: Any
    limits: Limits


def described(
    text: str, *, default: Any = dataclasses.MISSING, factory: Any = dataclasses.MISSING, **limits: Any
) -> Any:
    """Declare a dataclass field with its description and limits; without a default it is required."""
    metadata = {"limits": Limits(text=text, **limits)}
    if factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def list_fields(cls: Any) -> tuple[Field, ...]:
    """List a dataclass's fields in their order."""
    return _read_fields(cls)


@functools.cache
def _read_fields(cls: Any) -> tuple[Field, ...]:
    hints = typing.get_type_hints(cls)
    return tuple(_read_field(field, hints[field.name]) for field in dataclasses.fields(cls))


def _read_field(field: dataclasses.Field[Any], hint: Any) -> Field:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else ()
    optional = type(None) in options
    kinds = [option for option in options if option is not type(None)]
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return Field(
        name=re.sub(r"_([a-z])", lambda match: match[1].upper(), field.name),
        python_name=field.name,
        kind=kinds[0] if optional and len(kinds) == 1 else hint,
        optional=optional,
        required=default is dataclasses.MISSING,
        default=default,
        limits=field.metadata["limits"],
    )


def list_rules(cls: type) -> tuple[Rule, ...]:
    """List the rules that span fields of a dataclass."""
    return getattr(cls, "RULES", ())
