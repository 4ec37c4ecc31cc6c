"""Pydantic's errors as lines for the one who edits the file.

One line each, `file:line:column: what; what to do`, in the order of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.sections.kafka import several
from gateway.config.types.section import REFUSED

from .expression import nearest
from .nodes import START, Mark
from .substitution import Unsettled, shown
from .yaml_source import Document

Way = tuple[str | int, ...]


def lines(document: Document, error: ValidationError | None, root: type[BaseModel]) -> list[str]:
    """Every problem of a document, located; `error` is what its values were refused with."""
    found = list(document.problems)
    for detail in error.errors(include_url=False) if error else ():
        if not isinstance(_at(document.values, detail["loc"]), Unsettled):
            found.append(_located(document, detail, root))
    return [document.line(mark, message) for mark, message in sorted(set(found))]


def line_at(document: Document, way: Way, message: str) -> str:
    """A problem that was found in settings that are right in themselves, located."""
    return document.line(_mark(document, way), f"{dotted(way)}: {message}")


def dotted(way: Sequence[str | int]) -> str:
    """A way as people write it: kafka.topics[0].name"""
    text = ""
    for step in way:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r"[A-Za-z0-9_-]+", step):
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text


def _located(document: Document, detail: ErrorDetails, root: type[BaseModel]) -> tuple[Mark, str]:
    way = detail["loc"]
    kind, context = detail["type"], detail.get("ctx", {})
    inside = f" in {dotted(way[:-1])}" if len(way) > 1 else ""
    if way and way[-1] == "[key]":
        return _mark(document, way[:-1], key=True), f"{dotted(way[:-1])}: {_message(detail)}"
    if kind == "missing":
        what = f"'{way[-1]}' is missing{inside}; add it"
        return _mark(document, way[:-1], key=True), what
    if kind == "extra_forbidden":
        known = _keys(root, way[:-1], document.values)
        what = f"unknown key '{way[-1]}'{inside}; {nearest(str(way[-1]), known)}"
        return _mark(document, way, key=True), what
    if kind == REFUSED:
        about_key = context.get("key") and not context.get("whole")
        name = dotted(way[:-1] if about_key else way)
        message = f"{name}: {context['message']}" if name else str(context["message"])
        return _mark(document, way, key=bool(context.get("key"))), message
    value = _at(document.values, way)
    return _mark(document, way), f"{dotted(way) or 'the file'}: {_wrong(kind, detail, value)}"


def _wrong(kind: str, detail: ErrorDetails, value: object) -> str:
    """What pydantic itself refused, in the words of the file."""
    given = "nothing" if value is None else _nested(value) or shown(value)
    if kind == "literal_error":
        words = re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))
        hint = nearest(str(value), words) if isinstance(value, str) else f"use {' or '.join(words)}"
        return f"{given} is not known here; {hint}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"expects options, not {given}; write `key: value` below it"
    if kind in ("tuple_type", "list_type"):
        return f"expects a list, not {given}; write - before each item, or [..]"
    return f"{_message(detail)}; check it"


def _message(detail: ErrorDetails) -> str:
    return str(detail.get("ctx", {}).get("message", detail["msg"]))


def _nested(value: object) -> str:
    return "options" if isinstance(value, dict) else "a list" if isinstance(value, list) else ""


def _mark(document: Document, way: Way, *, key: bool = False) -> Mark:
    """Where to look: the value, or its key; what is not in the file stands for its parent."""
    for length in range(len(way), -1, -1):
        marks = document.marks.get(way[:length])
        if marks is not None:
            return marks.key if key or length < len(way) else marks.value
    return START


def _at(values: Any, way: Way) -> Any:
    for step in way:
        if isinstance(values, str):
            return None  # what was in a `${file:...}` has no place in this file
        try:
            values = values[step]
        except (KeyError, IndexError, TypeError):
            return None
    return values


def _keys(root: type[BaseModel], way: Way, values: Any) -> list[str]:
    """The keys that the section at a way knows."""
    kind: Any = root
    for depth, step in enumerate(way):
        kind = _below(_bare(kind, _at(values, way[:depth])), step)
    kind = _bare(kind, _at(values, way))
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return []
    return [field.alias or name for name, field in kind.model_fields.items()]


def _below(kind: Any, step: str | int) -> Any:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        return fields[str(step)].annotation if str(step) in fields else None
    if get_origin(kind) in (tuple, dict):
        return get_args(kind)[0 if get_origin(kind) is tuple else 1]
    return None


def _bare(kind: Any, value: Any) -> Any:
    """A type without Annotated and Optional; of several, the one of the value's `type`."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif get_origin(kind) in (Union, UnionType):
            kinds = [arg for arg in get_args(kind) if arg is not type(None)]
            kind = next((each for each in kinds if _is_of(each, value)), kinds[0])
        else:
            return kind


def _is_of(kind: Any, value: Any) -> bool:
    """A section's `type` is that of the value; or they are clusters by name."""
    if get_origin(kind) is dict:
        return several(value)
    fields = getattr(kind, "model_fields", {})
    wanted = value.get("type") if isinstance(value, Mapping) else None
    return "type" in fields and wanted in get_args(fields["type"].annotation)
