"""A configuration file as plain values, with the place of every key and value.

Scalars are read by the core schema of YAML 1.2 (section 10.3): `on`, `no` and 12:30 are
text. A plain or quoted text with `${env...}` or `${file...}` is settled here; an option
whose substitution comes out empty (`${env.RACK:}`) is as if it were not written.
"""

from __future__ import annotations

import collections.abc
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gateway.errors import ConfigError

from .nodes import Malformed, Mapping, Mark, Node, Scalar, Sequence, compose
from .substitution import NOTHING, Substituted, Unsettled, substitute

Place: TypeAlias = tuple[str | int, ...]

MOST = 20_000  # values once aliases are expanded: refuses a bomb, not 500 topics

_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_NULL = re.compile(r"|~|null|Null|NULL")
_INT = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]{1,30}(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


class Marks(NamedTuple):
    """Where a value stands and, in a mapping, its key."""

    key: Mark
    value: Mark


@dataclass(slots=True)
class Document:
    """The values of a file, their marks by path, and what was wrong on the way."""

    name: str
    values: Any = None
    marks: dict[Place, Marks] = field(default_factory=dict)
    problems: list[tuple[Mark, str]] = field(default_factory=list)
    count: int = 0

    def line(self, mark: Mark, message: str) -> str:
        return f"{self.name}:{mark.line}:{mark.column}: {message}"


def read(
    text: str,
    *,
    name: str,
    environ: collections.abc.Mapping[str, str],
    given: collections.abc.Mapping[str, str] = NOTHING,
) -> Document:
    """Read a text; `name` is its file, whose folder `${file:...}` starts at. given: values of a
    file of their own.

    What is wrong stands in `problems`; `values` is None when nothing could be read.
    """
    document = Document(name)
    try:
        document.values = _Values(document, environ, Path(name).parent, given).of(compose(text), ())
    except Malformed as error:
        document.values = None
        document.problems.append((error.mark, error.message))
    return document


def decode(raw: bytes, *, name: str) -> str:
    """The text of a file. Raises ConfigError where the bytes are not UTF-8."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ConfigError([f"{name}:1:1: the file is UTF-16; save it as UTF-8"])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode("utf-8")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        byte = error.object[error.start]
        problem = f"byte 0x{byte:02x} is not UTF-8; save the file as UTF-8"
        raise ConfigError([f"{name}:{line}:{column}: {problem}"]) from None


@dataclass(slots=True)
class _Values:
    document: Document
    environ: collections.abc.Mapping[str, str]
    base: Path
    given: collections.abc.Mapping[str, str]

    def of(self, node: Node, path: Place, key: Mark | None = None) -> Any:
        nothing = isinstance(node, Scalar) and node.plain and not node.text
        self.document.marks[path] = Marks(key or node.mark, key if key and nothing else node.mark)
        self.document.count += 1
        if self.document.count > MOST:
            raise Malformed(node.mark, f"more than {MOST} values, aliases expanded; use fewer")
        if isinstance(node, Mapping):
            return self.mapping(node, path)
        if isinstance(node, Sequence):
            return [self.of(item, (*path, index)) for index, item in enumerate(node.items)]
        return self.scalar(node)

    def mapping(self, node: Mapping, path: Place) -> dict[str, Any]:
        values: dict[str, Any] = {}
        seen: dict[str, Mark] = {}
        for key, item in node.items:
            if not self.usable(key, seen):
                continue
            seen[key.text] = key.mark
            value = self.of(item, (*path, key.text), key.mark)
            if not (isinstance(value, Substituted) and value == ""):
                values[key.text] = value
        return values

    def usable(self, key: Scalar, seen: dict[str, Mark]) -> bool:
        refuse = self.document.problems.append
        if key.plain and key.text == "<<":
            what = "merge keys are not read here; write the keys out, or alias a whole value"
            refuse((key.mark, what))
        elif key.plain and not isinstance(plain(key.text), str):
            refuse((key.mark, f"the key {key.text or 'null'} is not text; put it in quotes"))
        elif key.text in seen:
            line = seen[key.text].line
            refuse((key.mark, f"duplicate key '{key.text}', first on line {line}; remove one"))
        else:
            return True
        return False

    def scalar(self, node: Scalar) -> Any:
        if "${" not in node.text:
            return plain(node.text) if node.plain else node.text
        try:
            return substitute(node.text, environ=self.environ, base=self.base, given=self.given)
        except ValueError as error:
            self.document.problems.append((node.mark, str(error)))
            return Unsettled(node.text)


def plain(text: str) -> Any:
    """The value of an unquoted scalar."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
