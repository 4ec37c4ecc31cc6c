"""YAML text to a tree of nodes that know where they stand.

Built on the parser's events, not on a loader: a loader hides duplicate keys, expands
aliases without a bound and resolves `no` to false. What a configuration has no use for
(tags, merge keys, several documents, keys that are not text) is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

DEEPEST = 32  # levels; a valid file has 8
LONGEST = 1024 * 1024  # characters


# ruamel.yaml lets a few of Python's slip, such as OverflowError for "\UFFFFFFFF".
_SLIPS = (YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError)


class Mark(NamedTuple):
    """A place in the file; line and column count from 1."""

    line: int
    column: int


START = Mark(1, 1)


@dataclass(slots=True)
class Scalar:
    mark: Mark
    text: str
    plain: bool


@dataclass(slots=True)
class Sequence:
    mark: Mark
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Mapping:
    mark: Mark
    items: list[tuple[Scalar, Node]] = field(default_factory=list)


Node: TypeAlias = Scalar | Sequence | Mapping


class Malformed(Exception):
    """The text is no YAML, or none that is read here."""

    def __init__(self, mark: Mark, message: str) -> None:
        super().__init__(message)
        self.mark = mark
        self.message = message


def compose(text: str) -> Node:
    """The one document of a text. Raises Malformed."""
    if len(text) > LONGEST:
        raise Malformed(START, "the file is longer than 1MiB; is it the right one?")
    composer = _Composer()
    try:
        return composer.document(YAML(typ="safe", pure=True).parse(text.removeprefix("\ufeff")))
    except MarkedYAMLError as error:
        raise _syntax(error, text) from None
    except ReaderError as error:
        raise _character(error, text) from None
    except (
        YAMLError,
        ValueError,
        ArithmeticError,
        LookupError,
        AttributeError,
        TypeError,
    ) as error:
        raise Malformed(composer.last, f"no valid YAML from here on ({error}); check it") from None


class _Composer:
    def __init__(self) -> None:
        self.last = START
        self.events: Iterator[Event] = iter(())
        self.anchors: dict[str, Node | None] = {}

    def document(self, events: Iterator[Event]) -> Node:
        self.events = events
        root: Node | None = None
        for event in events:
            if not isinstance(event, DocumentStartEvent):
                continue
            if root is not None:
                raise Malformed(_mark(event), "a second document starts here; keep one a file")
            root = self.node(self.next(), 0)
        if root is None or (isinstance(root, Scalar) and root.plain and not root.text):
            raise Malformed(START, "the file is empty; it needs at least kafka.servers")
        return root

    def next(self) -> Event:
        event = next(self.events)
        self.last = _mark(event)
        return event

    def node(self, event: Any, depth: int) -> Node:
        mark = _mark(event)
        if depth > DEEPEST:
            raise Malformed(mark, f"nested deeper than {DEEPEST} levels; check the brackets")
        if isinstance(event, AliasEvent):
            return self.alias(str(event.anchor), mark)
        if event.tag is not None:
            raise Malformed(mark, f"the tag '{event.tag}' means nothing here; remove it")
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        made = self.content(event, mark, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = made
        return made

    def alias(self, anchor: str, mark: Mark) -> Node:
        if anchor not in self.anchors:
            raise Malformed(mark, f"no anchor '&{anchor}' stands before this alias; check the name")
        node = self.anchors[anchor]
        if node is None:
            raise Malformed(mark, f"'*{anchor}' stands inside its own anchor; remove it")
        return node

    def content(self, event: Event, mark: Mark, depth: int) -> Node:
        if isinstance(event, SequenceStartEvent):
            sequence = Sequence(mark)
            while not isinstance(item := self.next(), SequenceEndEvent):
                sequence.items.append(self.node(item, depth + 1))
            return sequence
        if isinstance(event, MappingStartEvent):
            mapping = Mapping(mark)
            while not isinstance(item := self.next(), MappingEndEvent):
                key = self.key(item, depth)
                mapping.items.append((key, self.node(self.next(), depth + 1)))
            return mapping
        assert isinstance(event, ScalarEvent)
        return Scalar(mark, str(event.value), not event.style)

    def key(self, event: Event, depth: int) -> Scalar:
        key = self.node(event, depth + 1)
        if not isinstance(key, Scalar):
            raise Malformed(key.mark, "a key must be text, not a list or a mapping; check for '?'")
        return Scalar(_mark(event), key.text, key.plain)


def _mark(event: Event) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


def _syntax(error: MarkedYAMLError, text: str) -> Malformed:
    """What the parser found wrong, in the words of one who edits the file."""
    found = error.problem_mark or error.context_mark
    mark = Mark(found.line + 1, found.column + 1) if found else START
    lines = text.split("\n")
    line = lines[mark.line - 1] if mark.line <= len(lines) else ""
    before = line[: mark.column]
    if "\t" in before and not before.strip():
        return Malformed(mark, "a tab indents this line; indent with spaces")
    what = " ".join(part for part in (error.problem, error.context) if part)
    if "stream end" in what or "end of stream" in what:
        start = error.context_mark
        at = Mark(start.line + 1, start.column + 1) if start else mark
        return Malformed(at, "what opens here is never closed; add the closing quote or bracket")
    if "mapping values are not allowed" in what:
        return Malformed(mark, "a ':' is not allowed here; check indentation, or quote the text")
    if "${" in line:
        return Malformed(mark, "a '{' is not allowed here; in [..] and {..} put ${..} in quotes")
    return Malformed(mark, f"no valid YAML: {what}; check indentation and quotes")


def _character(error: ReaderError, text: str) -> Malformed:
    before = text[: error.position]
    mark = Mark(before.count("\n") + 1, len(before) - before.rfind("\n"))
    code = ord(error.character) if isinstance(error.character, str) else error.character
    return Malformed(mark, f"character U+{code:04X} is not allowed in YAML; remove or escape it")
