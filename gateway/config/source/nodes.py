"""Parse YAML text into a tree of nodes that know where they stand.

The tree is built from the parser's events, not by a loader: a loader hides duplicate keys, expands
aliases without a bound and resolves `no` to false. Features that a configuration does not need
(tags, merge keys, several documents, keys that are not text) are refused by name.
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

MAX_DEPTH = 32  # levels; a valid file has 8
MAX_TEXT_CHARS = 1024 * 1024


class SourceMark(NamedTuple):
    """A place in the file, counted from 1, or the origin of a value that is not in the file."""

    line: int
    column: int
    origin: str = ""


START_MARK = SourceMark(1, 1)


@dataclass(slots=True)
class ScalarNode:
    """A scalar. `is_plain` is false for quoted and block scalars, which are always text."""

    mark: SourceMark
    text: str
    is_plain: bool


@dataclass(slots=True)
class SequenceNode:
    mark: SourceMark
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class MappingNode:
    """A mapping and its items, in the order of the file; keys may occur twice."""

    mark: SourceMark
    items: list[tuple[ScalarNode, Node]] = field(default_factory=list)


Node: TypeAlias = ScalarNode | SequenceNode | MappingNode


class MalformedYamlError(Exception):
    """The text is not YAML, or uses a feature that is refused here."""

    def __init__(self, mark: SourceMark, message: str) -> None:
        super().__init__(message)
        self.mark = mark
        self.message = message


def compose(text: str) -> Node:
    """Return the root node of the only document; raise MalformedYamlError for others."""
    if len(text) > MAX_TEXT_CHARS:
        raise MalformedYamlError(START_MARK, "the file is longer than 1MiB; is it the right one?")
    composer = _Composer()
    try:
        return composer.compose_document(
            YAML(typ="safe", pure=True).parse(text.removeprefix("\ufeff"))
        )
    except MarkedYAMLError as error:
        raise _build_syntax_error(error, text) from None
    except ReaderError as error:
        raise _build_character_error(error, text) from None
    # ruamel.yaml lets some of Python's own exceptions escape: OverflowError for "\UFFFFFFFF".
    except (
        YAMLError,
        ValueError,
        ArithmeticError,
        LookupError,
        AttributeError,
        TypeError,
    ) as error:
        raise MalformedYamlError(
            composer.last_mark, f"no valid YAML from here on ({error}); check it"
        ) from None


class _Composer:
    def __init__(self) -> None:
        self.last_mark = START_MARK
        self.events: Iterator[Event] = iter(())
        self.anchors: dict[str, Node | None] = {}

    def compose_document(self, events: Iterator[Event]) -> Node:
        self.events = events
        root: Node | None = None
        for event in events:
            if not isinstance(event, DocumentStartEvent):
                continue
            if root is not None:
                raise MalformedYamlError(
                    _start_mark(event), "a second document starts here; keep one a file"
                )
            root = self.compose_node(self.next_event(), 0)
        if root is None or (isinstance(root, ScalarNode) and root.is_plain and not root.text):
            raise MalformedYamlError(
                START_MARK, "the file is empty; it needs at least kafka.servers"
            )
        return root

    def next_event(self) -> Event:
        """Return the next event and remember its place for error messages."""
        event = next(self.events)
        self.last_mark = _start_mark(event)
        return event

    def compose_node(self, event: Any, depth: int) -> Node:
        mark = _start_mark(event)
        if depth > MAX_DEPTH:
            raise MalformedYamlError(
                mark, f"nested deeper than {MAX_DEPTH} levels; check the brackets"
            )
        if isinstance(event, AliasEvent):
            return self.resolve_alias(str(event.anchor), mark)
        if event.tag is not None:
            raise MalformedYamlError(mark, f"the tag '{event.tag}' means nothing here; remove it")
        if event.anchor is not None:
            # None while its node is being built, so that an alias inside it is noticed.
            self.anchors[event.anchor] = None
        node = self.compose_content(event, mark, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def resolve_alias(self, anchor: str, mark: SourceMark) -> Node:
        if anchor not in self.anchors:
            raise MalformedYamlError(
                mark, f"no anchor '&{anchor}' stands before this alias; check the name"
            )
        node = self.anchors[anchor]
        if node is None:
            raise MalformedYamlError(mark, f"'*{anchor}' stands inside its own anchor; remove it")
        return node

    def compose_content(self, event: Event, mark: SourceMark, depth: int) -> Node:
        if isinstance(event, SequenceStartEvent):
            sequence = SequenceNode(mark)
            while not isinstance(item := self.next_event(), SequenceEndEvent):
                sequence.items.append(self.compose_node(item, depth + 1))
            return sequence
        if isinstance(event, MappingStartEvent):
            mapping = MappingNode(mark)
            while not isinstance(item := self.next_event(), MappingEndEvent):
                key = self.compose_key(item, depth)
                mapping.items.append((key, self.compose_node(self.next_event(), depth + 1)))
            return mapping
        assert isinstance(event, ScalarEvent)
        return ScalarNode(mark, str(event.value), not event.style)

    def compose_key(self, event: Event, depth: int) -> ScalarNode:
        key = self.compose_node(event, depth + 1)
        if not isinstance(key, ScalarNode):
            raise MalformedYamlError(
                key.mark, "a key must be text, not a list or a mapping; check for '?'"
            )
        return ScalarNode(_start_mark(event), key.text, key.is_plain)


def _start_mark(event: Event) -> SourceMark:
    return SourceMark(event.start_mark.line + 1, event.start_mark.column + 1)


def _build_syntax_error(error: MarkedYAMLError, text: str) -> MalformedYamlError:
    position = error.problem_mark or error.context_mark
    mark = SourceMark(position.line + 1, position.column + 1) if position else START_MARK
    lines = text.split("\n")
    line = lines[mark.line - 1] if mark.line <= len(lines) else ""
    before = line[: mark.column]
    if "\t" in before and not before.strip():
        return MalformedYamlError(mark, "a tab indents this line; indent with spaces")
    problem = " ".join(part for part in (error.problem, error.context) if part)
    if "stream end" in problem or "end of stream" in problem:
        start = error.context_mark
        start_mark = SourceMark(start.line + 1, start.column + 1) if start else mark
        return MalformedYamlError(
            start_mark, "what opens here is never closed; add the closing quote or bracket"
        )
    if "mapping values are not allowed" in problem:
        return MalformedYamlError(
            mark, "a ':' is not allowed here; check indentation, or quote the text"
        )
    if "${" in line:
        return MalformedYamlError(
            mark, "a '{' is not allowed here; in [..] and {..} put ${..} in quotes"
        )
    return MalformedYamlError(mark, f"no valid YAML: {problem}; check indentation and quotes")


def _build_character_error(error: ReaderError, text: str) -> MalformedYamlError:
    before = text[: error.position]
    mark = SourceMark(before.count("\n") + 1, len(before) - before.rfind("\n"))
    code = ord(error.character) if isinstance(error.character, str) else error.character
    return MalformedYamlError(
        mark, f"character U+{code:04X} is not allowed in YAML; remove or escape it"
    )
