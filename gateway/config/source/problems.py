"""Format pydantic's errors as lines for the editor of the file.

Each problem is one line, `file:line:column: problem; remedy`, in the order of the file.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config.types.forms import AnySection, find_sections, get_item, is_section
from gateway.config.types.section import PROBLEM_ERROR_TYPE, Loc, Section
from gateway.config.types.substitution import UnresolvedText, safe_repr, suggest

from .nodes import START_MARK, SourceMark
from .yaml_document import YamlDocument


def format_problems(
    document: YamlDocument, error: ValidationError | None, root: type[Section]
) -> list[str]:
    """Return a line for every problem of a document, in the order of the file."""
    located = list(document.problems)
    for detail in error.errors(include_url=False) if error else ():
        if not isinstance(_get_value(document.values, detail["loc"]), UnresolvedText):
            mark, message = _locate_problem(document, detail, root)
            located.append((mark, message + _describe_empty(document, detail["loc"], message)))
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
    document: YamlDocument, detail: ErrorDetails, root: type[Section]
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


def _describe_empty(document: YamlDocument, loc: Loc, message: str) -> str:
    """Return which options that a message is about are missing because a variable is empty."""
    sections = document.get_written_loc(loc), document.get_written_loc(loc[:-1])
    return "".join(
        f" ('{name}' is empty: {source})"
        for (*section, name), source in document.empty.items()
        if tuple(section) in sections and re.search(rf"\b{re.escape(str(name))}\b", message)
    )


def _suggest_key(document: YamlDocument, loc: Loc, root: type[Section]) -> str:
    """Return the advice on an unknown key: where it belongs, or which key is near."""
    key = str(loc[-1])
    sections = find_sections(root, loc[:-1], document.values)
    section = sections[-1]
    if is_section(section):
        hint = section.suggest_option(key, _get_value(document.values, loc))
        if hint is not None:
            return hint
    for outer, step in zip(reversed(sections[:-1]), reversed(loc[:-1]), strict=True):
        if isinstance(step, int):
            break  # a key of an item, which is no key of the list's section
        if key in _list_keys(outer):
            return f"it belongs beside '{step}'"
    return suggest(key, _list_keys(section))


def _list_keys(section: AnySection) -> list[str]:
    if section is None:
        return []
    short_keys = section.short_keys if is_section(section) else ()
    return [*section.list_options(), *short_keys]


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
    return functools.reduce(get_item, loc, values)
