"""Read a configuration file as plain values with their places, and write settings as YAML.

Scalars are read by the core schema of YAML 1.2 (section 10.3): `on`, `no` and 12:30 are text. A
plain or quoted text with `${env...}` or `${file...}` is substituted here. An option whose
substitution is empty (`${env.RACK:}`) counts as not written.

What is written loads to equal settings, without their secrets. A secret is written as the `${...}`
that referred to it. A secret that stood in the file itself becomes
`${env.KAFKA_SECURITY_SASL_PASSWORD}`, named after its option: loading the text then says which
variables to set, instead of logging in with asterisks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gateway.config.types.fields import Secret
from gateway.config.types.section import Section
from gateway.config.types.substitution import (
    NO_VALUES,
    SubstitutedText,
    UnresolvedText,
    escape,
    substitute,
)
from gateway.config.types.template import Template
from gateway.errors import ConfigError

from .nodes import MalformedYamlError, SourceMark, compose, get_mark

Loc: TypeAlias = tuple[str | int, ...]

MAX_VALUES = 20_000  # with aliases expanded: refuses an alias bomb, but not 500 topics

_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_NULL = re.compile(r"|~|null|Null|NULL")
_INT = re.compile(r"[-+]?[0-9]+")
_BASE_INT = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAX_INT_CHARS = 4000  # beyond 4300, int() raises ValueError


class SourceMarks(NamedTuple):
    key: SourceMark
    value: SourceMark


@dataclass(slots=True)
class YamlDocument:
    """The values of a file, their marks by path, and the problems found while reading.

    Attributes:
        values: The plain values; None if nothing could be read.
        moves: For each path of `values` that the file does not have: the path of the file that it
            is from, which holds for everything below it, too.
        origins: The paths of the values that are not from the file, each with its origin.
        empty: The paths of options that count as not written, each with its empty `${...}`.
    """

    name: str
    values: Any = None
    marks: dict[Loc, SourceMarks] = field(default_factory=dict)
    problems: list[tuple[SourceMark, str]] = field(default_factory=list)
    value_count: int = 0
    moves: dict[Loc, Loc] = field(default_factory=dict)
    origins: dict[Loc, str] = field(default_factory=dict)
    empty: dict[Loc, str] = field(default_factory=dict)

    def override(self, loc: Loc, value: Any, origin: str) -> None:
        """Replace the value of an option, which the file need not have."""
        self.origins[loc] = origin
        self.values = _replace_value(self.values, loc, value)

    def get_written_loc(self, loc: Loc) -> Loc:
        """Return the path in the file of an option that the file has in another form."""
        for length in range(len(loc), 0, -1):
            moved = self.moves.get(loc[:length])
            if moved is not None:
                return (*moved, *loc[length:])
        return loc

    def format_line(self, mark: SourceMark, message: str) -> str:
        if mark.origin:
            return f"{mark.origin}: {message}"
        return f"{self.name}:{mark.line}:{mark.column}: {message}"


def _replace_value(values: Any, loc: Loc, value: Any) -> Any:
    """Return mappings with another value at a path; a value that is no mapping stays."""
    if not loc:
        return value
    if values is None:
        values = {}
    if not isinstance(values, dict):
        return values
    return {**values, loc[0]: _replace_value(values.get(loc[0]), loc[1:], value)}


def parse_document(
    text: str,
    *,
    name: str,
    environ: Mapping[str, str],
    substitutions: Mapping[str, str] = NO_VALUES,
) -> YamlDocument:
    """Read a YAML text. Problems are returned in the document, not raised.

    Args:
        name: The name of its file; `${file:...}` is relative to the folder of this file.
    """
    document = YamlDocument(name)
    try:
        document.values = _ValueBuilder(document, environ, Path(name).parent, substitutions).build(
            compose(text), ()
        )
    except MalformedYamlError as error:
        document.values = None
        document.problems.append((error.mark, error.message))
    return document


def decode_utf8(raw: bytes, *, name: str) -> str:
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
class _ValueBuilder:
    document: YamlDocument
    environ: Mapping[str, str]
    base: Path
    substitutions: Mapping[str, str]

    def build(self, node: Node, loc: Loc, key: SourceMark | None = None) -> Any:
        mark = get_mark(node)
        is_empty = isinstance(node, ScalarNode) and not node.style and not node.value
        self.document.marks[loc] = SourceMarks(key or mark, key if key and is_empty else mark)
        self.document.value_count += 1
        if self.document.value_count > MAX_VALUES:
            raise MalformedYamlError(
                mark, f"more than {MAX_VALUES} values, aliases expanded; use fewer"
            )
        if isinstance(node, MappingNode):
            return self.build_mapping(node, loc)
        if isinstance(node, SequenceNode):
            return [self.build(item, (*loc, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return self.build_scalar(node)

    def build_mapping(self, node: MappingNode, loc: Loc) -> dict[str, Any]:
        """Return the values of a mapping without refused keys and empty substitutions."""
        values: dict[str, Any] = {}
        seen: dict[str, SourceMark] = {}
        for key, item in node.value:
            mark = get_mark(key)
            problem = self.find_key_problem(key, seen)
            if problem is not None:
                self.document.problems.append((mark, problem))
                continue
            seen[key.value] = mark
            value = self.build(item, (*loc, key.value), mark)
            if isinstance(value, SubstitutedText) and value == "":
                self.document.empty[*loc, key.value] = value.source
            else:
                values[key.value] = value
        return values

    def find_key_problem(self, key: ScalarNode, seen: Mapping[str, SourceMark]) -> str | None:
        """Return why a key may not be used; None if it may."""
        if not key.style and key.value == "<<":
            return "merge keys are not read here; write the keys out, or alias a whole value"
        if not key.style and not isinstance(parse_plain(key.value), str):
            return f"the key {key.value or 'null'} is not text; put it in quotes"
        if key.value in seen:
            line = seen[key.value].line
            return f"duplicate key '{key.value}', first on line {line}; remove one"
        return None

    def build_scalar(self, node: ScalarNode) -> Any:
        if "${" not in node.value:
            return node.value if node.style else parse_plain(node.value)
        try:
            return substitute(
                node.value, environ=self.environ, base=self.base, values=self.substitutions
            )
        except ValueError as error:
            self.document.problems.append((get_mark(node), str(error)))
            return UnresolvedText(node.value)


def parse_plain(text: str) -> Any:
    """Return the value of an unquoted scalar, by YAML's core schema (YAML 1.2 10.3.2).

    A number of too many digits is an infinite float, which no option takes.
    """
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _BASE_INT.fullmatch(text):
        return int(text, 0)
    if _INT.fullmatch(text) and len(text) <= _MAX_INT_CHARS:
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text.replace(".", ""))
    return text


_PLAIN_SCALAR = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*|[0-9]+[A-Za-z]+")
_RESERVED_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def dumps(settings: Section) -> str:
    return format_values(dump_values(settings))


def dump_values(settings: Section) -> dict[str, Any]:
    """Return the effective configuration as the values that its YAML would hold."""
    return _dump_section(settings, ())


def format_values(values: Mapping[str, Any]) -> str:
    return "\n".join(_iter_mapping_lines(values, 0)) + "\n"


def _dump_section(section: Section, loc: tuple[str, ...]) -> dict[str, Any]:
    dumped = section.model_dump(mode="json", by_alias=True)
    result: dict[str, Any] = {}
    for name, info in type(section).model_fields.items():
        alias = info.alias or name
        value = getattr(section, name)
        # An empty list is left out only where it is the default: `forward.headers: []` is not.
        if value == info.default and (value is None or value in ((), {})):
            continue
        dumped_value = _dump_value(value, dumped[alias], (*loc, alias))
        # `tls: {}` turns TLS on, but `traces: {}` is the default.
        if dumped_value != {} or value != info.default:
            result[alias] = dumped_value
    return result


def _dump_value(value: object, dumped: Any, loc: tuple[str, ...]) -> Any:
    """Return a value as in YAML, with references in place of secrets."""
    if isinstance(value, Section):
        return _dump_section(value, loc)
    if isinstance(value, Secret):
        return _RawText(value.source or f"${{env.{_build_variable_name(loc)}}}")
    if isinstance(value, Template):
        return _RawText(str(value))
    # A serializer may write a tuple or a mapping as something else: a single URL as one text.
    if isinstance(value, tuple) and isinstance(dumped, list):
        return [
            _dump_value(item, dumped_item, (*loc, str(index)))
            for index, (item, dumped_item) in enumerate(zip(value, dumped, strict=True))
        ]
    if isinstance(value, Mapping) and isinstance(dumped, Mapping):
        return {key: _dump_value(item, dumped[key], (*loc, key)) for key, item in value.items()}
    return dumped


def _build_variable_name(loc: tuple[str, ...]) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", "_".join(loc))
    return re.sub(r"[^A-Za-z0-9]+", "_", words).upper()


class _RawText(str):
    """A text that is written without escaping its `${...}`."""


def _iter_mapping_lines(values: Mapping[str, Any], depth: int) -> Iterator[str]:
    for key, value in values.items():
        yield from _iter_entry_lines(f"{_format_scalar(_RawText(key))}:", value, depth)


def _iter_entry_lines(head: str, value: Any, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(value, dict) and value:
        yield indent + head
        yield from _iter_mapping_lines(value, depth + 1)
    elif isinstance(value, list) and value:
        yield indent + head
        for item in value:
            yield from _iter_item_lines(item, depth + 1)
    else:
        yield f"{indent}{head} {_format_scalar(value)}"


def _iter_item_lines(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, dict) and value:
        first, *rest = _iter_mapping_lines(value, depth + 1)
        yield "  " * depth + "- " + first.lstrip(" ")
        yield from rest
    else:
        yield "  " * depth + "- " + _format_scalar(value)


def _format_scalar(value: Any) -> str:
    if isinstance(value, str):
        text = value if isinstance(value, _RawText) else escape(value)
        if _PLAIN_SCALAR.fullmatch(text) and text.lower() not in _RESERVED_WORDS:
            return text
        return "".join(
            char if char.isprintable() else f"\\U{ord(char):08X}"
            for char in json.dumps(text, ensure_ascii=False)
        )
    return json.dumps(value)


LogFormat: TypeAlias = Literal["console", "json"]

VARIABLE = "GATEWAY_TELEMETRY__LOGS__FORMAT"
# YAML that is malformed has no options. Then only this says what its author wants.
_JSON_FORMAT = re.compile(r"""^\s*["']?format["']?\s*:\s*["']?json["']?\s*,?\s*$""", re.MULTILINE)


def find_log_format(text: str, name: str, environ: Mapping[str, str]) -> LogFormat:
    """Return the value of `telemetry.logs.format`, as far as it can be read; else `console`.

    Loading may warn, and fail. These lines, too, must be JSON objects if the file asks for that,
    even if something else in it is wrong.
    """
    value: object = environ.get(VARIABLE)
    if not value:
        value = parse_document(text, name=name, environ=environ).values
        if value is None and _JSON_FORMAT.search(text):
            return "json"
        for key in ("telemetry", "logs", "format"):
            value = value.get(key) if isinstance(value, Mapping) else None
    return "json" if value == "json" else "console"
