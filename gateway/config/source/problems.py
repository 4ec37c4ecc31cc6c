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

from gateway.config.sections.kafka import is_cluster_mapping
from gateway.config.types.section import PROBLEM_ERROR_TYPE

from .expression import suggest
from .nodes import START_MARK, SourceMark
from .substitution import UnresolvedText, safe_repr
from .yaml_document import YamlDocument

Loc = tuple[str | int, ...]


def format_problems(
    document: YamlDocument, error: ValidationError | None, root: type[BaseModel]
) -> list[str]:
    """Every problem of a document, located; `error` is what its values were refused with."""
    found = list(document.problems)
    for detail in error.errors(include_url=False) if error else ():
        if not isinstance(_get_value(document.values, detail["loc"]), UnresolvedText):
            found.append(_locate_problem(document, detail, root))
    return [document.format_line(mark, message) for mark, message in sorted(set(found))]


def format_problem(document: YamlDocument, loc: Loc, message: str) -> str:
    """A problem that was found in settings that are right in themselves, located."""
    return document.format_line(_find_mark(document, loc), f"{format_loc(loc)}: {message}")


def format_loc(loc: Sequence[str | int]) -> str:
    """A way as people write it: kafka.topics[0].name"""
    text = ""
    for step in loc:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r"[A-Za-z0-9_-]+", step):
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text


def _locate_problem(
    document: YamlDocument, detail: ErrorDetails, root: type[BaseModel]
) -> tuple[SourceMark, str]:
    way = detail["loc"]
    kind, context = detail["type"], detail.get("ctx", {})
    inside = f" in {format_loc(way[:-1])}" if len(way) > 1 else ""
    if way and way[-1] == "[key]":
        return _find_mark(
            document, way[:-1], key=True
        ), f"{format_loc(way[:-1])}: {_get_message(detail)}"
    if kind == "missing":
        what = f"'{way[-1]}' is missing{inside}; add it"
        return _find_mark(document, way[:-1], key=True), what
    if kind == "extra_forbidden":
        known = _list_keys(root, way[:-1], document.values)
        what = f"unknown key '{way[-1]}'{inside}; {suggest(str(way[-1]), known)}"
        return _find_mark(document, way, key=True), what
    if kind == PROBLEM_ERROR_TYPE:
        about_key = context.get("key") and not context.get("whole")
        name = format_loc(way[:-1] if about_key else way)
        message = f"{name}: {context['message']}" if name else str(context["message"])
        return _find_mark(document, way, key=bool(context.get("key"))), message
    value = _get_value(document.values, way)
    return _find_mark(
        document, way
    ), f"{format_loc(way) or 'the file'}: {_describe_error(kind, detail, value)}"


def _describe_error(kind: str, detail: ErrorDetails, value: object) -> str:
    """What pydantic itself refused, in the words of the file."""
    given = "nothing" if value is None else _describe_nested(value) or safe_repr(value)
    if kind == "literal_error":
        words = re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))
        hint = suggest(str(value), words) if isinstance(value, str) else f"use {' or '.join(words)}"
        return f"{given} is not known here; {hint}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"expects options, not {given}; write `key: value` below it"
    if kind in ("tuple_type", "list_type"):
        return f"expects a list, not {given}; write - before each item, or [..]"
    return f"{_get_message(detail)}; check it"


def _get_message(detail: ErrorDetails) -> str:
    return str(detail.get("ctx", {}).get("message", detail["msg"]))


def _describe_nested(value: object) -> str:
    return "options" if isinstance(value, dict) else "a list" if isinstance(value, list) else ""


def _find_mark(document: YamlDocument, loc: Loc, *, key: bool = False) -> SourceMark:
    """Where to look: the value, or its key; what is not in the file stands for its parent."""
    for length in range(len(loc), -1, -1):
        marks = document.marks.get(loc[:length])
        if marks is not None:
            return marks.key if key or length < len(loc) else marks.value
    return START_MARK


def _get_value(values: Any, loc: Loc) -> Any:
    for step in loc:
        if isinstance(values, str):
            return None  # what was in a `${file:...}` has no place in this file
        try:
            values = values[step]
        except (KeyError, IndexError, TypeError):
            return None
    return values


def _list_keys(root: type[BaseModel], loc: Loc, values: Any) -> list[str]:
    """The keys that the section at a way knows."""
    kind: Any = root
    for depth, step in enumerate(loc):
        kind = _get_child_type(_unwrap_type(kind, _get_value(values, loc[:depth])), step)
    kind = _unwrap_type(kind, _get_value(values, loc))
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return []
    return [field.alias or name for name, field in kind.model_fields.items()]


def _get_child_type(kind: Any, step: str | int) -> Any:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        return fields[str(step)].annotation if str(step) in fields else None
    if get_origin(kind) in (tuple, dict):
        return get_args(kind)[0 if get_origin(kind) is tuple else 1]
    return None


def _unwrap_type(kind: Any, value: Any) -> Any:
    """A type without Annotated and Optional; of several, the one of the value's `type`."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif get_origin(kind) in (Union, UnionType):
            kinds = [arg for arg in get_args(kind) if arg is not type(None)]
            kind = next((each for each in kinds if _is_type_of(each, value)), kinds[0])
        else:
            return kind


def _is_type_of(kind: Any, value: Any) -> bool:
    """A section's `type` is that of the value; or they are clusters by name."""
    if get_origin(kind) is dict:
        return is_cluster_mapping(value)
    fields = getattr(kind, "model_fields", {})
    wanted = value.get("type") if isinstance(value, Mapping) else None
    return "type" in fields and wanted in get_args(fields["type"].annotation)
