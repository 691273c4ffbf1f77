"""Turn an API object into frozen dataclasses and back, by the declarations of `fields`.

Every fault is collected, not only the first. What the API server checks by the CRD's schema is checked here alike, so
that `plan -f` needs no cluster and an object that slipped past an older CRD is still refused.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from typing import Any, TypeVar

from lockstep_operator.api.fields import QUANTITY_PATTERN, Field, Limits, Quantity, list_fields, list_rules
from lockstep_operator.errors import SpecError

T = TypeVar("T")


def parse(cls: type[T], raw: Any, at: str) -> T:
    """Build a dataclass from an API object or a part of one.

    Args:
        cls: a dataclass whose fields are declared with `fields.described`.
        raw: the object as JSON or YAML gives it.
        at: the object's own path, for messages (`spec`).

    Raises:
        SpecError: lists every fault, each with its field's path.
    """
    problems: list[str] = []
    value = _parse_object(cls, raw, at, problems)
    if problems:
        raise SpecError(problems)
    return typing.cast("T", value)


def encode(value: Any) -> dict[str, Any]:
    """Write a dataclass as an API object, without fields that are None."""
    return {
        field.name: _encode_value(item)
        for field in list_fields(type(value))
        if (item := getattr(value, field.python_name)) is not None
    }


def encode_explicit(value: Any) -> dict[str, Any]:
    """Write only what differs from the defaults, so that a field that is added later changes nothing that exists."""
    explicit = {}
    for field in list_fields(type(value)):
        item = getattr(value, field.python_name)
        if item != field.default:
            explicit[field.name] = _encode_value(item, encode_explicit)
    return explicit


def _encode_value(item: Any, encode_object: Any = encode) -> Any:
    if dataclasses.is_dataclass(item):
        return encode_object(item)
    if isinstance(item, tuple):
        return [_encode_value(entry, encode_object) for entry in item]
    return dict(item) if isinstance(item, dict) else item


def _parse_object(cls: type, raw: Any, at: str, problems: list[str]) -> Any:
    if not isinstance(raw, dict):
        problems.append(f"{at}: must be an object, not {_type_name(raw)}")
        return None
    fields = list_fields(cls)
    known = {field.name for field in fields}
    problems += [f"{at}.{name}: unknown field" for name in raw if name not in known]
    before = len(problems)
    values = {field.python_name: _parse_field(field, raw, f"{at}.{field.name}", problems) for field in fields}
    if len(problems) > before:
        return None
    value = cls(**values)
    problems += [rule.message for rule in list_rules(cls) if not rule.check(value)]
    return value


def _parse_field(field: Field, raw: dict[str, Any], at: str, problems: list[str]) -> Any:
    item = raw.get(field.name)
    if item is not None:
        return _parse_value(field.kind, item, field.limits, at, problems)
    if field.required:
        problems.append(f"{at}: is required")
    return None if field.required else field.default


def _parse_value(kind: Any, raw: Any, limits: Limits, at: str, problems: list[str]) -> Any:
    if dataclasses.is_dataclass(kind):
        return _parse_object(typing.cast("type", kind), raw, at, problems)
    if kind == Quantity:
        return _parse_quantity(raw, at, problems)
    origin = typing.get_origin(kind)
    if origin is tuple:
        return _parse_list(typing.get_args(kind)[0], raw, limits, at, problems)
    if origin is dict:
        return _parse_map(typing.get_args(kind)[1], raw, limits, at, problems)
    return _parse_scalar(kind, raw, limits, at, problems)


def _parse_list(kind: Any, raw: Any, limits: Limits, at: str, problems: list[str]) -> Any:
    if not isinstance(raw, list):
        problems.append(f"{at}: must be a list, not {_type_name(raw)}")
        return ()
    if len(raw) > limits.max_items:
        problems.append(f"{at}: must have at most {limits.max_items} items")
    items = tuple(_parse_value(kind, item, limits, f"{at}[{n}]", problems) for n, item in enumerate(raw))
    if limits.map_key is not None:
        keys = [item.get(limits.map_key) for item in raw if isinstance(item, dict)]
        problems += [f"{at}: two items have {limits.map_key} {key!r}" for key in {*keys} if keys.count(key) > 1]
    return items


def _parse_map(kind: Any, raw: Any, limits: Limits, at: str, problems: list[str]) -> Any:
    if not isinstance(raw, dict):
        problems.append(f"{at}: must be an object, not {_type_name(raw)}")
        return {}
    if len(raw) > limits.max_items:
        problems.append(f"{at}: must have at most {limits.max_items} entries")
    return {key: _parse_value(kind, item, limits, f"{at}.{key}", problems) for key, item in raw.items()}


def _parse_quantity(raw: Any, at: str, problems: list[str]) -> Quantity:
    is_number = isinstance(raw, int) and not isinstance(raw, bool)
    if not is_number and not (isinstance(raw, str) and re.match(QUANTITY_PATTERN, raw)):
        problems.append(f"{at}: must be a quantity such as 2, 500m or 16Gi, not {raw!r}")
    return typing.cast("Quantity", raw)


def _parse_scalar(kind: type, raw: Any, limits: Limits, at: str, problems: list[str]) -> Any:
    if kind is float and isinstance(raw, int) and not isinstance(raw, bool):
        raw = float(raw)
    if not isinstance(raw, kind) or (isinstance(raw, bool) and kind is not bool):
        problems.append(f"{at}: must be {_KIND_WORDS[kind]}, not {_type_name(raw)}")
        return None
    fault = _find_text_fault(raw, limits) if isinstance(raw, str) else _find_number_fault(raw, limits)
    if fault:
        problems.append(f"{at}: {fault}")
    return raw


def _find_text_fault(text: str, limits: Limits) -> str | None:
    if limits.enum is not None and text not in limits.enum:
        return f"must be one of {', '.join(limits.enum)}, not {text!r}"
    if len(text) > limits.max_length:
        return f"must have at most {limits.max_length} characters"
    if limits.pattern is not None and not re.search(limits.pattern, text):
        return f"{text!r} does not match {limits.pattern}"
    return None


def _find_number_fault(number: Any, limits: Limits) -> str | None:
    if limits.minimum is not None and number < limits.minimum:
        return f"must be at least {limits.minimum:g}, not {number:g}"
    if limits.maximum is not None and number > limits.maximum:
        return f"must be at most {limits.maximum:g}, not {number:g}"
    return None


_KIND_WORDS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def _type_name(raw: Any) -> str:
    return {dict: "an object", list: "a list", type(None): "null"}.get(type(raw)) or repr(raw)
