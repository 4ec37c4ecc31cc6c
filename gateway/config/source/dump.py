"""Write settings as YAML that loads to equal settings, without their secrets.

A secret is written as the `${...}` that referred to it. A secret that stood in the file itself
becomes `${env.KAFKA_SECURITY_SASL_PASSWORD}`, named after its option: loading the text then says
which variables to set, instead of logging in with asterisks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gateway.config.types.fields import Secret
from gateway.config.types.section import Section

from .expression import escape
from .template import Template

if TYPE_CHECKING:
    from gateway.config.sections.settings import Settings

_PLAIN_SCALAR = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*|[0-9]+[A-Za-z]+")
_RESERVED_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def dumps(settings: Settings) -> str:
    return format_values(dump_values(settings))


def dump_values(settings: Settings) -> dict[str, Any]:
    """Return the effective configuration as the values that its YAML would hold."""
    return _dump_section(settings, ())


def format_values(values: Mapping[str, Any]) -> str:
    return "\n".join(_iter_mapping_lines(values, 0)) + "\n"


def _dump_section(section: Section, loc: tuple[str, ...]) -> dict[str, Any]:
    dumped = section.model_dump(mode="json", by_alias=True)
    result: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        alias = field.alias or name
        value = getattr(section, name)
        # An empty list is left out only where it is the default: `forward.headers: []` is not.
        if value == field.default and (value is None or value in ((), {})):
            continue
        dumped_value = _dump_value(value, dumped[alias], (*loc, alias))
        # `tls: {}` turns TLS on, but `traces: {}` is the default.
        if dumped_value != {} or value != field.default:
            result[alias] = dumped_value
    return result


def _dump_value(value: object, dumped: Any, loc: tuple[str, ...]) -> Any:
    """Return a value as in YAML, with references in place of secrets."""
    if isinstance(value, Section):
        return _dump_section(value, loc)
    if isinstance(value, Secret):
        return _RawText(value.source or f"${{env.{_build_variable_name(loc)}}}")
    if isinstance(value, Template):
        return _RawText(str(value))
    # A serializer may write a tuple or a mapping as something else: a single URL as one text.
    if isinstance(value, tuple) and isinstance(dumped, list):
        return [
            _dump_value(item, dumped_item, (*loc, str(index)))
            for index, (item, dumped_item) in enumerate(zip(value, dumped, strict=True))
        ]
    if isinstance(value, Mapping) and isinstance(dumped, Mapping):
        return {key: _dump_value(item, dumped[key], (*loc, key)) for key, item in value.items()}
    return dumped


def _build_variable_name(loc: tuple[str, ...]) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", "_".join(loc))
    return re.sub(r"[^A-Za-z0-9]+", "_", words).upper()


class _RawText(str):
    """A text that is written without escaping its `${...}`."""


def _iter_mapping_lines(values: Mapping[str, Any], depth: int) -> Iterator[str]:
    for key, value in values.items():
        yield from _iter_entry_lines(f"{_format_scalar(_RawText(key))}:", value, depth)


def _iter_entry_lines(head: str, value: Any, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(value, dict) and value:
        yield indent + head
        yield from _iter_mapping_lines(value, depth + 1)
    elif isinstance(value, list) and value:
        yield indent + head
        for item in value:
            yield from _iter_item_lines(item, depth + 1)
    else:
        yield f"{indent}{head} {_format_scalar(value)}"


def _iter_item_lines(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, dict) and value:
        first, *rest = _iter_mapping_lines(value, depth + 1)
        yield "  " * depth + "- " + first.lstrip(" ")
        yield from rest
    else:
        yield "  " * depth + "- " + _format_scalar(value)


def _format_scalar(value: Any) -> str:
    if isinstance(value, str):
        text = value if isinstance(value, _RawText) else escape(value)
        if _PLAIN_SCALAR.fullmatch(text) and text.lower() not in _RESERVED_WORDS:
            return text
        return "".join(
            char if char.isprintable() else f"\\U{ord(char):08X}"
            for char in json.dumps(text, ensure_ascii=False)
        )
    return json.dumps(value)
