"""Write a migrated configuration as YAML, with comments on the source of each part.

A value that was not carried is a comment where readers miss it, if there is such a place, and
otherwise at the head of the file.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.cli.starter_config import SCHEMA_HINT, SCHEMA_MODELINE
from gateway.config.source.problems import format_loc
from gateway.config.types.section import Loc

from .draft import Draft
from .report import Omission

LINE_WIDTH = 100  # columns
SECTIONS = ("name", "listen", "kafka", "catalogs", "guards", "tokens", "telemetry", "routes")
"""The order of sections in the file."""

_REST = " (the rest of it)"
_PLAIN_SCALAR = re.compile(r"[A-Za-z/$][A-Za-z0-9_./${}'\[\]:;=-]*")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*")
_RESERVED_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


@dataclass(slots=True)
class WrittenConfig:
    """A configuration as text, with the option's path on each line; empty for comments."""

    lines: list[str] = field(default_factory=list)
    locs: list[Loc] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def find_loc(self, line: int) -> Loc:
        """Return the path of the option on a line, which counts from 1."""
        return self.locs[line - 1] if 0 < line <= len(self.locs) else ()


def write_config(draft: Draft) -> WrittenConfig:
    writer = _Writer(draft)
    writer.write_head()
    known = [name for name in SECTIONS if name in draft.values]
    for name in (*known, *(name for name in draft.values if name not in known)):
        writer.add_line("", ())
        writer.write_entry(name, draft.values[name], (name,), 0)
    return writer.written


def format_omission(draft: Draft, omission: Omission) -> str:
    place = draft.report.source.format_place(omission.loc)
    return f"{place}{_REST if omission.is_rest else ''}: {omission.reason}"


class _Writer:
    def __init__(self, draft: Draft) -> None:
        self.written = WrittenConfig()
        self._draft = draft
        self._near: dict[Loc, list[Omission]] = {}
        self._far: list[Omission] = []
        for omission in draft.report.omissions:
            if omission.near and draft.get(omission.near) is not None:
                self._near.setdefault(omission.near, []).append(omission)
            else:
                self._far.append(omission)

    def write_head(self) -> None:
        name = self._draft.report.source.name
        self.add_line(SCHEMA_MODELINE, ())
        self.add_line(SCHEMA_HINT, ())
        self.add_line("#", ())
        self._add_comment(
            f"Migrated from {name} by `gateway migrate`. Check it with `gateway check --cluster`, "
            "and start it with `gateway run`.",
            0,
        )
        needed = self._draft.list_variables()
        if needed:
            self.add_line("#", ())
            self._add_comment("Set these environment variables:", 0)
        for variable, description in needed.items():
            self._add_comment(f"- {variable}{f': {description}' if description else ''}", 0)
        for variable, description in self._draft.list_optional_variables().items():
            self._add_comment(f"- {variable}, if you need it: {description}", 0)
        if self._far:
            self.add_line("#", ())
            self._add_comment(f"Not carried over from {name}:", 0)
        for omission in self._far:
            self._add_comment(f"- {self._describe(omission)}", 0)

    def write_entry(self, key: str, value: Any, loc: Loc, depth: int) -> None:
        self._write_comments(loc, depth)
        head = f"{'  ' * depth}{_format_key(key)}:"
        self._write_value(head, value, loc, depth)

    def add_line(self, line: str, loc: Loc) -> None:
        """Write a line of an option; the path of comments is empty."""
        self.written.lines.append(line)
        self.written.locs.append(loc)

    def _write_value(self, head: str, value: Any, loc: Loc, depth: int) -> None:
        if isinstance(value, Mapping) and value:
            self.add_line(head, loc)
            for key, item in value.items():
                self.write_entry(key, item, (*loc, key), depth + 1)
        elif isinstance(value, list) and value and not _is_short(value, head):
            self.add_line(head, loc)
            for index, item in enumerate(value):
                self._write_item(item, (*loc, index), depth + 1)
        elif isinstance(value, list):
            items = ", ".join(_format_scalar(item, is_flow=True) for item in value)
            self.add_line(f"{head} [{items}]", loc)
        else:
            self.add_line(f"{head} {_format_scalar(value)}", loc)

    def _write_item(self, value: Any, loc: Loc, depth: int) -> None:
        self._write_comments(loc, depth)
        indent = "  " * depth
        if not isinstance(value, Mapping) or not value:
            self._write_value(f"{indent}-", value, loc, depth)
            return
        start = len(self.written.lines)
        for key, item in value.items():
            self.write_entry(key, item, (*loc, key), depth + 1)
        # The first line that is no comment begins the item.
        lines = self.written.lines
        first = next(n for n in range(start, len(lines)) if self.written.locs[n])
        lines[first] = f"{indent}- {lines[first].lstrip()}"

    def _write_comments(self, loc: Loc, depth: int) -> None:
        for text in self._draft.comments.get(loc, ()):
            self._add_comment(text, depth)
        for omission in self._near.get(loc, ()):
            self._add_comment(f"Not carried over: {self._describe(omission)}", depth)

    def _add_comment(self, text: str, depth: int) -> None:
        indent = "  " * depth
        hanging = "  " if text.startswith("- ") else ""
        text = "".join(char if char.isprintable() else " " for char in text)
        for line in textwrap.wrap(
            text,
            LINE_WIDTH,
            initial_indent=f"{indent}# ",
            subsequent_indent=f"{indent}# {hanging}",
            break_long_words=False,
            break_on_hyphens=False,
        ):
            self.add_line(line, ())

    def _describe(self, omission: Omission) -> str:
        mark = self._draft.report.source.marks.get(omission.loc)
        line = f"line {mark.line}, " if mark is not None else ""
        rest = _REST if omission.is_rest else ""
        return f"{line}{format_loc(omission.loc) or 'the file'}{rest}: {omission.reason}"


def _is_short(values: Sequence[Any], head: str) -> bool:
    if any(isinstance(value, (Mapping, list)) for value in values):
        return False
    return len(head) + sum(len(str(value)) + 4 for value in values) <= LINE_WIDTH


def _format_key(key: str) -> str:
    is_plain = _PLAIN_KEY.fullmatch(key) and key.lower() not in _RESERVED_WORDS
    return key if is_plain and not key.endswith(":") else _quote(key)


def _format_scalar(value: Any, *, is_flow: bool = False) -> str:
    if not isinstance(value, str):
        return "{}" if isinstance(value, Mapping) else json.dumps(value)
    is_plain = _PLAIN_SCALAR.fullmatch(value) and value.lower() not in _RESERVED_WORDS
    if not is_plain or value.endswith(":") or (is_flow and set(value) & set("{}[]:,'")):
        return _quote(value)
    return value


def _quote(text: str) -> str:
    return "".join(_escape_characters(json.dumps(text, ensure_ascii=False)))


def _escape_characters(text: str) -> Iterator[str]:
    for char in text:
        yield char if char.isprintable() else f"\\U{ord(char):08X}"
