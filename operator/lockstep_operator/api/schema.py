"""Structural OpenAPI schema of a dataclass, from the declarations of `fields`. It knows nothing of any one field."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from lockstep_operator.api.decode import encode
from lockstep_operator.api.fields import QUANTITY_PATTERN, Field, Limits, Quantity, list_fields, list_rules

_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


def build_schema(cls: type, *, with_defaults: bool = True) -> dict[str, Any]:
    """Build the schema of a dataclass.

    Args:
        cls: a dataclass whose fields are declared with `fields.described`.
        with_defaults: whether the API server fills in defaults; a status has none.
    """
    fields = list_fields(cls)
    schema: dict[str, Any] = {
        "type": "object",
        "description": (cls.__doc__ or "").splitlines()[0],
        "properties": {field.name: build_field(field, with_defaults=with_defaults) for field in fields},
    }
    required = [field.name for field in fields if field.required]
    if required:
        schema["required"] = required
    rules = [{"rule": rule.cel, "message": rule.message} for rule in list_rules(cls)]
    if rules:
        schema["x-kubernetes-validations"] = rules
    return schema


def build_field(field: Field, *, with_defaults: bool) -> dict[str, Any]:
    """Build the schema of one field, with its default so that rules may count on the field being there."""
    schema = _build_value(field.kind, field.limits, with_defaults) | {"description": field.limits.text}
    if with_defaults and not field.required and field.default is not None:
        schema["default"] = _encode_default(field.default)
    return schema


def _encode_default(default: Any) -> Any:
    """Write a default out in full: the API server checks an object's rules against it as it stands."""
    if dataclasses.is_dataclass(default):
        return encode(default)
    return list(default) if isinstance(default, tuple) else default


def _build_value(kind: Any, limits: Limits, with_defaults: bool) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        return build_schema(typing.cast("type", kind), with_defaults=with_defaults)
    if kind == Quantity:
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY_PATTERN,
            "maxLength": 32,
        }
    origin = typing.get_origin(kind)
    if origin is tuple:
        return _build_list(typing.get_args(kind)[0], limits, with_defaults)
    if origin is dict:
        item = _build_value(typing.get_args(kind)[1], limits, with_defaults)
        return {"type": "object", "additionalProperties": item, "maxProperties": limits.max_items}
    return _build_scalar(kind, limits)


def _build_list(kind: Any, limits: Limits, with_defaults: bool) -> dict[str, Any]:
    schema = {"type": "array", "items": _build_value(kind, limits, with_defaults), "maxItems": limits.max_items}
    if limits.map_key is not None:
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [limits.map_key]}
    else:
        schema |= {"x-kubernetes-list-type": "atomic"}
    return schema


def _build_scalar(kind: type, limits: Limits) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _TYPES[kind]}
    if kind is str:
        schema |= {"maxLength": limits.max_length} if limits.enum is None else {"enum": list(limits.enum)}
        schema |= {} if limits.pattern is None else {"pattern": limits.pattern}
        schema |= {} if limits.format is None else {"format": limits.format}
    if kind is int:
        schema["format"] = "int64"
    if limits.minimum is not None:
        schema["minimum"] = limits.minimum
    if limits.maximum is not None:
        schema["maximum"] = limits.maximum
    return schema
