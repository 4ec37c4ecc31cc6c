"""Read a zilla.yaml, and the line of each value.

Values keep their place (`loc`) and line. Nothing is substituted: `${...}` means something else
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gateway.config.source.nodes import MalformedYamlError, SourceMark, compose, get_mark
from gateway.config.source.problems import format_loc
from gateway.config.source.yaml_document import decode_utf8, parse_plain
from gateway.config.types.section import Loc
from gateway.errors import ConfigError

MAX_VALUES = 200_000  # with aliases expanded: refuses an alias bomb


@dataclass(slots=True)
class Source:
    """A zilla.yaml. `marks` has the places of values in the file, by path."""

    name: str
    values: Any
    marks: dict[Loc, SourceMark] = field(default_factory=dict)

    def format_place(self, loc: Loc) -> str:
        mark = self.marks.get(loc)
        line = f":{mark.line}" if mark is not None else ""
        return f"{self.name}{line}: {format_loc(loc) or 'the file'}"


def read_source(file: Path) -> Source:
    name = str(file)
    try:
        text = decode_utf8(file.read_bytes(), name=name)
    except OSError as exc:
        raise ConfigError([f"{name}:1:1: cannot be read ({exc.strerror}); check the path"]) from exc
    try:
        builder = _Builder()
        values = builder.build(compose(text), ())
    except MalformedYamlError as exc:
        place = f"{name}:{exc.mark.line}:{exc.mark.column}"
        raise ConfigError([f"{place}: {exc.message}"]) from exc
    return Source(name, values, builder.marks)


def iter_leaves(values: Any, loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    """Yield the path and the value of everything that has nothing below it."""
    if isinstance(values, Mapping) and values:
        for key, item in values.items():
            yield from iter_leaves(item, (*loc, key))
    elif isinstance(values, list) and values:
        for index, item in enumerate(values):
            yield from iter_leaves(item, (*loc, index))
    else:
        yield loc, values


@dataclass(slots=True)
class _Builder:
    marks: dict[Loc, SourceMark] = field(default_factory=dict)

    def build(self, node: Node, loc: Loc, mark: SourceMark | None = None) -> Any:
        """Return the value of a node and record its place, which is that of its key."""
        self.marks[loc] = mark or get_mark(node)
        if len(self.marks) > MAX_VALUES:
            raise MalformedYamlError(
                get_mark(node), f"more than {MAX_VALUES} values, aliases expanded; use fewer"
            )
        if isinstance(node, ScalarNode):
            return node.value if node.style else parse_plain(node.value)
        if isinstance(node, SequenceNode):
            return [self.build(item, (*loc, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, MappingNode)
        return self._build_mapping(node, loc)

    def _build_mapping(self, node: MappingNode, loc: Loc) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, item in node.value:
            mark = get_mark(key)
            if key.value in values:
                first = self.marks[*loc, key.value].line
                message = f"duplicate key '{key.value}', first on line {first}; remove one"
                raise MalformedYamlError(mark, message)
            values[key.value] = self.build(item, (*loc, key.value), mark)
        return values
