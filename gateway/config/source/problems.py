"""Format pydantic's errors as lines for the editor of the file.

Each problem is one line, `file:line:column: problem; remedy`, in the order of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gateway.config.sections.kafka import is_cluster_mapping
from gateway.config.types.kinds import Kinds
from gateway.config.types.section import PROBLEM_ERROR_TYPE, Section

from .nodes import START_MARK, SourceMark
from .substitution import UnresolvedText, safe_repr, suggest
from .yaml_document import YamlDocument

Loc = tuple[str | int, ...]


def format_problems(
    document: YamlDocument, error: ValidationError | None, root: type[BaseModel]
) -> list[str]:
    """Return a line for every problem of a document, in the order of the file."""
    located = list(document.problems)
    for detail in error.errors(include_url=False) if error else ():
        if not isinstance(_get_value(document.values, detail["loc"]), UnresolvedText):
            located.append(_locate_problem(document, detail, root))
    return [document.format_line(mark, message) for mark, message in sorted(set(located))]


def format_problem(document: YamlDocument, loc: Loc, message: str) -> str:
    """Return the line of a problem that was found after the settings were validated."""
    written = format_loc(document.get_written_loc(loc))
    return document.format_line(_find_mark(document, loc), f"{written}: {message}")


def iter_old_spellings(document: YamlDocument, spellings: Mapping[Loc, str]) -> Iterator[str]:
    """Yield a line for each option with an old spelling; `spellings` has the new ones by path."""
    for loc, spelling in spellings.items():
        marks = document.marks.get(loc)
        where = f" in {format_loc(loc[:-1])}" if len(loc) > 1 else ""
        yield document.format_line(
            START_MARK if marks is None else marks.key,
            f"'{loc[-1]}'{where} is an old spelling; write '{spelling}'",
        )


def format_loc(loc: Sequence[str | int]) -> str:
    """Return a path as people write it, such as `kafka.topics[0].name`."""
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
    loc = detail["loc"]
    kind, context = detail["type"], detail.get("ctx", {})
    parent = document.get_written_loc(loc[:-1])
    inside = f" in {format_loc(parent)}" if parent else ""
    if loc and loc[-1] == "[key]":
        return _find_mark(
            document, loc[:-1], key=True
        ), f"{format_loc(parent)}: {_get_message(detail)}"
    if kind == "missing":
        what = f"'{loc[-1]}' is missing{inside}; add it"
        return _find_mark(document, loc[:-1], key=True), what
    if kind == "extra_forbidden":
        what = f"unknown key '{loc[-1]}'{inside}; {_suggest_key(document, loc, root)}"
        return _find_mark(document, loc, key=True), what
    if kind == PROBLEM_ERROR_TYPE:
        about_key = context.get("key") and not context.get("whole")
        name = format_loc(parent if about_key else document.get_written_loc(loc))
        message = f"{name}: {context['message']}" if name else str(context["message"])
        return _find_mark(document, loc, key=bool(context.get("key"))), message
    value = _get_value(document.values, loc)
    name = format_loc(document.get_written_loc(loc)) or "the file"
    return _find_mark(document, loc), f"{name}: {_describe_error(kind, detail, value)}"


def _suggest_key(document: YamlDocument, loc: Loc, root: type[BaseModel]) -> str:
    """Return the advice on an unknown key: where it belongs, or which key is near."""
    key, kind_of_section = str(loc[-1]), _find_type(root, loc[:-1], document.values)
    if hint := _suggest_option(kind_of_section, key, _get_value(document.values, loc)):
        return hint
    for length in range(len(loc) - 1, 0, -1):
        section = loc[length - 1]
        if isinstance(section, int):
            break  # a key of an item, which is no key of the list's section
        if key in _list_keys(_find_type(root, loc[: length - 1], document.values)):
            return f"it belongs beside '{section}'"
    return suggest(key, _list_keys(kind_of_section))


def _describe_error(kind: str, detail: ErrorDetails, value: object) -> str:
    shown = "nothing" if value is None else _describe_nested(value) or safe_repr(value)
    if kind == "literal_error":
        words = re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))
        hint = suggest(str(value), words) if isinstance(value, str) else f"use {' or '.join(words)}"
        return f"{shown} is not known here; {hint}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"expects options, not {shown}; write `key: value` below it"
    if kind in ("tuple_type", "list_type"):
        return f"expects a list, not {shown}; write - before each item, or [..]"
    return f"{_get_message(detail)}; check it"


def _get_message(detail: ErrorDetails) -> str:
    return str(detail.get("ctx", {}).get("message", detail["msg"]))


def _describe_nested(value: object) -> str:
    return "options" if isinstance(value, dict) else "a list" if isinstance(value, list) else ""


def _find_mark(document: YamlDocument, loc: Loc, *, key: bool = False) -> SourceMark:
    """Return the place of a value or of its key.

    A value that is not in the file has the place of its closest ancestor, or its own origin. A
    section that is there only because of values from elsewhere has the origin of the first of them.
    """
    for length in range(len(loc), 0, -1):
        if loc[:length] in document.origins:
            return SourceMark(0, 0, document.origins[loc[:length]])
    for length in range(len(loc), -1, -1):
        marks = document.marks.get(document.get_written_loc(loc[:length]))
        if marks is not None:
            return marks.key if key or length < len(loc) else marks.value
        for inner, origin in document.origins.items():
            if inner[:length] == loc[:length]:
                return SourceMark(0, 0, origin)
    return START_MARK


def _get_value(values: Any, loc: Loc) -> Any:
    for step in loc:
        if isinstance(values, str):
            return None  # the content of a `${file:...}` has no place in this file
        try:
            values = values[step]
        except (KeyError, IndexError, TypeError):
            return None
    return values


def _find_type(root: type[BaseModel], loc: Loc, values: Any) -> Any:
    kind: Any = root
    for depth, step in enumerate(loc):
        kind = _get_child_type(_unwrap_type(kind, _get_value(values, loc[:depth])), step)
    return _unwrap_type(kind, _get_value(values, loc))


def _suggest_option(kind: Any, key: str, value: object) -> str | None:
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind.suggest_option(key, value)
    return None


def _list_keys(kind: Any) -> list[str]:
    if isinstance(kind, Kinds):
        return kind.list_options()
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return []
    options = [field.alias or name for name, field in kind.model_fields.items()]
    return [*options, *kind.short_keys] if issubclass(kind, Section) else options


def _get_child_type(kind: Any, step: str | int) -> Any:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        field = fields.get(str(step))
        return None if field is None else _add_kinds(field)
    if isinstance(kind, Kinds):
        children = (_get_child_type(member, step) for member in kind.values())
        return next((child for child in children if child is not None), None)
    if get_origin(kind) in (tuple, dict):
        return get_args(kind)[0 if get_origin(kind) is tuple else 1]
    return None


def _add_kinds(field: FieldInfo) -> Any:
    """Return the type of an option, with the kinds of its section, which pydantic keeps apart."""
    for metadata in field.metadata:
        if isinstance(metadata, Kinds):
            return Annotated[field.annotation, metadata]
    return field.annotation


def _unwrap_type(kind: Any, value: Any) -> Any:
    """Return a type without Annotated and Optional.

    Several kinds, or a union, become the one that fits the value; all kinds if it names no known
    one.
    """
    while True:
        if get_origin(kind) is Annotated:
            kind, *metadata = get_args(kind)
            for kinds in metadata:
                if isinstance(kinds, Kinds) and isinstance(value, Mapping):
                    return kinds.find(value) or kinds
        elif get_origin(kind) is tuple and isinstance(value, Mapping):
            kind = get_args(kind)[0]  # a single item stands for a list of one
        elif get_origin(kind) in (Union, UnionType):
            members = [arg for arg in get_args(kind) if arg is not type(None)]
            chosen = (member for member in members if _is_dict(member) == is_cluster_mapping(value))
            kind = next(chosen, members[0])
        else:
            return kind


def _is_dict(kind: Any) -> bool:
    return get_origin(kind) is dict
