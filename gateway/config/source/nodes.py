"""Parse YAML text into a tree of nodes that know where they stand.

The nodes are ruamel.yaml's, and not read further by its loader: a loader hides duplicate keys, and
expands aliases without a bound. Features that a configuration does not need (tags, several
documents) are refused by name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import Node, ScalarNode
from ruamel.yaml.reader import ReaderError

MAX_DEPTH = 32  # levels; a valid file has 8
MAX_TEXT_CHARS = 1024 * 1024


class SourceMark(NamedTuple):
    """A place in the file, counted from 1, or the origin of a value that is not in the file."""

    line: int
    column: int
    origin: str = ""


START_MARK = SourceMark(1, 1)


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
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    composer = yaml.composer
    try:
        root: Node | None = yaml.compose(text.removeprefix("\ufeff"))
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
    if root is None or (isinstance(root, ScalarNode) and not root.style and not root.value):
        raise MalformedYamlError(START_MARK, "the file is empty; it needs at least kafka.servers")
    return root


def get_mark(node: Any) -> SourceMark:
    """Return where a node or an event of the parser begins."""
    return SourceMark(node.start_mark.line + 1, node.start_mark.column + 1)


class _Composer(Composer):
    """Composes ruamel's nodes, and refuses where it stands what no configuration needs."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False
        self.last_mark = START_MARK
        self._levels = 0

    def compose_node(self, parent: Any, index: Any) -> Node:
        event = self.parser.peek_event()
        mark = self.last_mark = get_mark(event)
        if self._levels > MAX_DEPTH:
            raise MalformedYamlError(
                mark, f"nested deeper than {MAX_DEPTH} levels; check the brackets"
            )
        if isinstance(event, AliasEvent):
            self._check_alias(str(event.anchor), mark)
        elif event.tag is not None:
            raise MalformedYamlError(mark, f"the tag '{event.tag}' means nothing here; remove it")
        self._levels += 1
        node: Node = super().compose_node(parent, index)
        self._levels -= 1
        is_key = parent is not None and index is None
        if is_key and not isinstance(node, ScalarNode):
            raise MalformedYamlError(
                get_mark(node), "a key must be text, not a list or a mapping; check for '?'"
            )
        return node

    def _check_alias(self, anchor: str, mark: SourceMark) -> None:
        if anchor not in self.anchors:
            raise MalformedYamlError(
                mark, f"no anchor '&{anchor}' stands before this alias; check the name"
            )
        if self.anchors[anchor].end_mark is None:  # it is still being composed
            raise MalformedYamlError(mark, f"'*{anchor}' stands inside its own anchor; remove it")


def _build_syntax_error(error: MarkedYAMLError, text: str) -> MalformedYamlError:
    position = error.problem_mark or error.context_mark
    mark = SourceMark(position.line + 1, position.column + 1) if position else START_MARK
    lines = text.split("\n")
    line = lines[mark.line - 1] if mark.line <= len(lines) else ""
    before = line[: mark.column]
    if "\t" in before and not before.strip():
        return MalformedYamlError(mark, "a tab indents this line; indent with spaces")
    problem = " ".join(part for part in (error.problem, error.context) if part)
    if "another document" in problem:
        return MalformedYamlError(mark, "a second document starts here; keep one a file")
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
