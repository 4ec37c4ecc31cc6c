"""Set options by environment variables: `GATEWAY_LISTEN__PORT` is `listen.port`.

The name of a variable is GATEWAY_, then the path of the option in capitals: two underscores between
the levels, and one between the words of a name (`GATEWAY_LISTEN__DRAIN_TIMEOUT`). One underscore
between levels would be ambiguous, and Kubernetes sets variables such as `GATEWAY_ADMIN_PORT` for a
service `gateway-admin`.

A name of the file is a level, too: `GATEWAY_GUARDS__LOGIN__ISSUER` is the issuer of the guard
`login`. A list has its items separated by commas. Lists of sections and mappings are one variable,
in YAML: `GATEWAY_ROUTES='[{path: /events/orders, topic: orders}]'`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args, get_origin

from gateway.config.source.yaml_document import parse_document
from gateway.config.types.fields import DURATION_PATTERN, RATE_PATTERN, SIZE_PATTERN
from gateway.config.types.forms import get_item, is_section, resolve_type
from gateway.config.types.section import Loc, Section, as_mapping
from gateway.config.types.substitution import SubstitutedText
from gateway.errors import ConfigError

from .schema import build_json_schema
from .settings import Settings
from .telemetry import SHARE_PATTERN

PREFIX = "GATEWAY_"
LEVEL_SEPARATOR = "__"

COMMAND_VARIABLES = frozenset(
    {
        *("GATEWAY_CONFIG", "GATEWAY_ADMIN_TOKEN", "GATEWAY_TOKEN"),
        *("GATEWAY_SIDECAR_URL", "GATEWAY_SIDECAR_TOKEN"),
        *("GATEWAY_DRIVER_PID_FILE", "GATEWAY_SPARK_LOG", "GATEWAY_LOG_FORMAT"),
    }
)
"""Variables that commands read themselves, and that set no option of the configuration."""

OLD_NAMES: Mapping[str, str] = {"GATEWAY_KAFKA_SERVERS": "GATEWAY_KAFKA__SERVERS"}
"""Names that variables had before, each with the present one. They are still read."""

MIN_SIMILARITY = 0.85
"""How similar an unknown variable without a level must be to a known one to be reported.

Other variables that begin with GATEWAY_ may well be of other programs.
"""

# What Kubernetes sets for every service, here for those whose name begins with `gateway`.
_SERVICE_VARIABLE = re.compile(r".*(_SERVICE_HOST|_SERVICE_PORT(_.*)?|_PORT_[0-9]+_.*)")


class Variable(NamedTuple):
    """A variable that sets an option, with its type in a word and its default as in a file."""

    name: str
    option: str
    type: str
    default: str
    description: str


class Override(NamedTuple):
    """A value that replaces that of an option; `origin` is its variable, for messages."""

    loc: Loc
    value: Any
    origin: str


def list_variables() -> list[Variable]:
    """Return the variables of all options with a fixed path, in the order of the sections."""
    definitions = build_json_schema()
    sections = {"Settings": definitions, **definitions["$defs"]}
    return [
        _describe_variable(loc, sections[parent.__name__]["properties"][loc[-1]])
        for loc, parent, section in _iter_options(Settings)
        if section is None
    ]


def read_variables(
    environ: Mapping[str, str], values: object, referenced: Collection[str] = ()
) -> tuple[list[Override], list[str]]:
    """Return the values that variables set, and a warning for each variable that sets nothing.

    Args:
        values: The values of the file, whose names variables may have.
        referenced: The variables that the file refers to as `${env.NAME}`, whatever their names.
    """
    overrides, warnings = [], []
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in COMMAND_VARIABLES or not environ[name]:
            continue
        present_name = OLD_NAMES.get(name, name)
        if present_name != name and environ.get(present_name):
            continue
        target = _find_target(present_name, values)
        if target.is_option:
            value = _parse_value(target.kind, name, environ)
            overrides.append(Override(target.loc, value, name))
        elif name not in referenced and not _is_of_service(name, environ[name]):
            warnings += _describe_unknown(name, target)
    return overrides, warnings


def build_variable_name(loc: Loc) -> str:
    return PREFIX + LEVEL_SEPARATOR.join(_to_segment(str(step)) for step in loc)


def _to_segment(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[^A-Za-z0-9]+", "_", words).upper()


class _Option(NamedTuple):
    loc: Loc
    parent: type[Section]
    section: type[Section] | None  # None for single values, lists and mappings


def _iter_options(parent: type[Section], loc: Loc = ()) -> Iterator[_Option]:
    """Yield all options with a fixed path, each section before its options."""
    for key, kind in parent.list_options().items():
        section = _find_section(kind)
        yield _Option((*loc, key), parent, section)
        if section is not None:
            yield from _iter_options(section, (*loc, key))


def _find_section(kind: Any) -> type[Section] | None:
    section, _ = resolve_type(kind, {})
    return section if is_section(section) else None


class _Target(NamedTuple):
    """The result of looking up the name of a variable.

    Attributes:
        rest: The levels of the name that are not known; empty if it is known as a whole.
    """

    loc: Loc
    kind: Any
    values: object
    rest: Sequence[str]

    @property
    def is_option(self) -> bool:
        return not self.rest and _find_section(self.kind) is None


def _find_target(variable: str, values: object) -> _Target:
    target = _Target((), Settings, values, variable.removeprefix(PREFIX).split(LEVEL_SEPARATOR))
    while target.rest:
        children = _list_children(target)
        segment, *rest = target.rest
        if segment not in children:
            break
        step, kind = children[segment]
        target = _Target((*target.loc, step), kind, get_item(target.values, step), rest)
    return target


def _list_children(target: _Target) -> Mapping[str, tuple[str, Any]]:
    """Return the options or names below a target, each with its type, by the words of variables."""
    values = as_mapping(target.values)
    kind, _ = resolve_type(target.kind, values)
    if get_origin(kind) is dict:
        children: Mapping[str, Any] = dict.fromkeys(map(str, values), get_args(kind)[1])
    else:
        children = kind.list_options() if is_section(kind) else {}
    return {_to_segment(name): (name, child) for name, child in children.items()}


def _parse_value(kind: Any, variable: str, environ: Mapping[str, str]) -> Any:
    """Return the value of a variable as if a file referred to it."""
    text = environ[variable]
    resolved, _ = resolve_type(kind, {})
    if text.lstrip()[:1] in ("[", "{") and get_origin(resolved) in (tuple, dict):
        document = parse_document(text, name=variable, environ=environ)
        if document.problems:
            lines = [document.format_line(mark, what) for mark, what in document.problems]
            raise ConfigError(lines)
        return document.values
    source = f"${{env.{variable}}}"
    if get_origin(resolved) is tuple:
        items = (item.strip() for item in text.split(","))
        return [SubstitutedText.from_parts(source, (item,)) for item in items if item]
    return SubstitutedText.from_parts(source, (text,))


def _is_of_service(name: str, value: str) -> bool:
    is_address = name.endswith("_PORT") and "://" in value
    return is_address or _SERVICE_VARIABLE.fullmatch(name) is not None


def _describe_unknown(name: str, target: _Target) -> list[str]:
    """Return the warning for a variable that sets nothing; none if it may be of another program."""
    section = _find_section(target.kind)
    if not target.rest and section is not None:
        example = _build_example(section, target.loc)
        what = f"{'.'.join(map(str, target.loc))} is a section; set its options, such as {example}"
        return [f"the environment variable {name} sets no option: {what}"]
    hint = _suggest_named(target) or _suggest_variable(name)
    if hint is None and LEVEL_SEPARATOR not in name:
        return []
    advice = f"did you mean {hint}?" if hint else "`gateway config --env` lists all"
    return [f"the environment variable {name} sets no option; {advice}"]


def _suggest_variable(name: str) -> str | None:
    known = {name: name for name in COMMAND_VARIABLES} | dict(OLD_NAMES)
    for loc, _, section in _iter_options(Settings):
        variable = build_variable_name(loc)
        known[variable] = variable if section is None else _build_example(section, loc)
    known.pop(name, None)  # known for files of another form
    folded = {each.replace("_", ""): each for each in known}
    near = folded.get(name.replace("_", ""))
    if near is None:
        cutoff = 0.75 if LEVEL_SEPARATOR in name else MIN_SIMILARITY
        near = next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)
    return known[near] if near else None


def _suggest_named(target: _Target) -> str | None:
    """Return the variable with a name of the file where another name, or none, was written."""
    kind, _ = resolve_type(target.kind, as_mapping(target.values))
    children = _list_children(target)
    if get_origin(kind) is not dict or not children or not target.rest:
        return None
    segment, *rest = target.rest
    near = difflib.get_close_matches(segment, children, n=1)
    levels = [near[0], *rest] if near else [next(iter(children)), *target.rest]
    variable = LEVEL_SEPARATOR.join((build_variable_name(target.loc), *levels))
    nested = target.values
    for step in reversed(target.loc):
        nested = {step: nested}
    return variable if _find_target(variable, nested).is_option else None


def _build_example(section: type[Section], loc: Loc) -> str:
    """Return the variable of the first option of a section."""
    options = (option for option in _iter_options(section, loc) if option.section is None)
    return build_variable_name(next(options).loc)


def _describe_variable(loc: Loc, schema: Mapping[str, Any]) -> Variable:
    option = ".".join(str(step) for step in loc)
    default = schema.get("default")
    return Variable(
        build_variable_name(loc),
        option,
        _describe_type(schema),
        _format_default(default),
        str(schema.get("description", "")),
    )


def _format_default(default: object) -> str:
    if default is None or default in ([], {}):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, list):
        return ",".join(map(str, default))
    return str(default)


def _describe_type(schema: Mapping[str, Any]) -> str:
    members = [
        member
        for member in schema.get("anyOf", [schema])
        if member.get("type") != "null"
        and "${" not in str(member.get("pattern", "")).replace("\\", "")
    ] or [schema]
    types = dict.fromkeys(_describe_member(member) for member in members)
    return " or ".join(types)


def _describe_member(member: Mapping[str, Any]) -> str:
    if "anyOf" in member:
        return _describe_type(member)
    choices = member.get("enum") or ([member["const"]] if "const" in member else [])
    if choices:
        return "|".join(map(str, choices))
    pattern = member.get("pattern")
    if pattern in _PATTERN_TYPES:
        return _PATTERN_TYPES[pattern]
    if member.get("type") == "array":
        items = member.get("items", {})
        is_plain = items.get("type") in ("string", "integer") or "enum" in items
        return "list" if is_plain else "YAML"
    names = {"boolean": "true|false", "integer": "number", "number": "number", "string": "text"}
    return names.get(str(member.get("type")), "YAML")


_PATTERN_TYPES: Mapping[object, str] = {
    DURATION_PATTERN: "duration",
    SIZE_PATTERN: "size",
    RATE_PATTERN: "rate",
    SHARE_PATTERN: "share",
}
