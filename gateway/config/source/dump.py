"""Settings as YAML that loads to equal settings, without its secrets.

A secret is written as the file referred to it. One that stood in the file itself becomes
`${env.KAFKA_SECURITY_SASL_PASSWORD}`, named after its option: loading the text says which
variables to set, and nobody logs in with asterisks.
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

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*|[0-9]+[A-Za-z]+")
_RESERVED = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def dump(settings: Settings) -> str:
    """The effective configuration, defaults written out."""
    return "\n".join(_mapping(_section(settings, ()), 0)) + "\n"


def _section(section: Section, way: tuple[str, ...]) -> dict[str, Any]:
    """A section in the YAML's words, with what needs no serializer left as it is."""
    written = section.model_dump(mode="json", by_alias=True)
    made: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        word = field.alias or name
        value = getattr(section, name)
        if (value is None and field.default is None) or value in ((), {}):
            continue
        shown = _value(value, written[word], (*way, word))
        if shown != {} or field.default is None:  # `tls: {}` says something, `traces: {}` nothing
            made[word] = shown
    return made


def _value(value: object, written: Any, way: tuple[str, ...]) -> Any:
    if isinstance(value, Section):
        return _section(value, way)
    if isinstance(value, Secret):
        return _Raw(value.source or f"${{env.{_variable(way)}}}")
    if isinstance(value, Template):
        return _Raw(str(value))
    if isinstance(value, tuple):
        return [
            _value(item, item_written, (*way, str(index)))
            for index, (item, item_written) in enumerate(zip(value, written, strict=True))
        ]
    if isinstance(value, Mapping):
        return {key: _value(item, written[key], (*way, key)) for key, item in value.items()}
    return written


def _variable(way: tuple[str, ...]) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", "_".join(way))
    return re.sub(r"[^A-Za-z0-9]+", "_", words).upper()


class _Raw(str):
    """A text whose `${...}` is meant."""


def _mapping(values: Mapping[str, Any], depth: int) -> Iterator[str]:
    for key, value in values.items():
        yield from _entry(f"{_scalar(_Raw(key))}:", value, depth)


def _entry(head: str, value: Any, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(value, dict) and value:
        yield indent + head
        yield from _mapping(value, depth + 1)
    elif isinstance(value, list) and value:
        yield indent + head
        for item in value:
            yield from _item(item, depth + 1)
    else:
        yield f"{indent}{head} {_scalar(value)}"


def _item(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, dict) and value:
        first, *rest = _mapping(value, depth + 1)
        yield "  " * depth + "- " + first.lstrip(" ")
        yield from rest
    else:
        yield "  " * depth + "- " + _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        text = value if isinstance(value, _Raw) else escape(value)
        if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED:
            return text
        return "".join(
            char if char.isprintable() else f"\\U{ord(char):08X}"
            for char in json.dumps(text, ensure_ascii=False)
        )
    return json.dumps(value)
