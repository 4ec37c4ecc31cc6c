"""Write a draft as a configuration that `gateway check` accepts, with comments.

The configuration's own checks decide whether the converted values can be used. Refused values are
removed, and reported with the message of the check. Removing never opens anything: a route goes as
a whole, and with a guard go the routes that it guards.

A value that was not carried is a comment where readers miss it, if there is such a place, and
otherwise at the head of the file.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import certifi
from ruamel.yaml import YAML

from gateway.cli.starter_config import SCHEMA_HINT, SCHEMA_MODELINE
from gateway.config import loads
from gateway.config.source.problems import format_loc
from gateway.config.types.section import Loc
from gateway.errors import ConfigError, GatewayError

from .draft import Draft
from .report import Omission, Source, iter_leaves

LINE_WIDTH = 100  # columns
SECTIONS = ("name", "listen", "kafka", "catalogs", "guards", "tokens", "telemetry", "routes")
"""The order of sections in the file."""
MAX_ROUNDS = 1000  # each removes something; a file has far fewer options
EXAMPLE_URL = "https://migrated.example"
# 32 bytes in base64url, the least that a shared secret has (RFC 7518 3.2).
EXAMPLE_KEY = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA"
_EXAMPLES = {
    "servers": "localhost:9092", "k": EXAMPLE_KEY, "port": "8080", "host": "localhost",
    "hosts": "localhost", "ca": certifi.where(),  # the authorities of a file are loaded
    **dict.fromkeys(("origins", "url", "issuer", "otlp", "keys", "tokenUrl"), EXAMPLE_URL),
}  # fmt: skip
_FILE_OPTIONS = frozenset({"certificate", "key", "tokenFile"})
_ACCESS_CONTROL = ("listen", "access-control")
_WHOLE_VARIABLE = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}")


class WrittenConfig(NamedTuple):
    """A configuration as text, with the option's path on each line; empty for comments."""

    text: str
    locs: Sequence[Loc]


def prune(draft: Draft, file: Path, stand_in: Path) -> WrittenConfig:
    """Remove refused values; variables that name files name `stand_in`, which exists."""
    for _ in range(MAX_ROUNDS):
        _remove_empty_sections(draft)
        written = write_config(draft)
        environ = build_example_environment(draft, stand_in)
        try:
            loads(written.text, name=str(file), environ=environ)
        except ConfigError as exc:
            _remove_problems(draft, written, exc.problems, str(file))
        else:
            return written
    raise GatewayError("the configuration is refused whatever is left out; report this file")


def build_example_environment(draft: Draft, stand_in: Path) -> Mapping[str, str]:
    environ = dict.fromkeys(draft.list_variables(), "x")
    for loc, value in iter_leaves(draft.values):
        match = _WHOLE_VARIABLE.fullmatch(value) if isinstance(value, str) else None
        if match is not None:
            option = next((step for step in reversed(loc) if isinstance(step, str)), "")
            is_file = option in _FILE_OPTIONS
            environ[match[1]] = str(stand_in.resolve()) if is_file else _EXAMPLES.get(option, "x")
    return environ


def _remove_problems(
    draft: Draft, written: WrittenConfig, problems: Sequence[str], name: str
) -> None:
    """Remove refused values; routes only if nothing else is left to remove."""
    found: dict[Loc, str] = {}
    for problem in problems:
        match = re.match(rf"{re.escape(name)}:(\d+):\d+: (.*)", problem, re.DOTALL)
        if match is None:
            raise GatewayError(f"the migrated configuration cannot be used: {problem}")
        loc = written.locs[int(match[1]) - 1]
        found.setdefault(_find_removable(loc), match[2])
    others = {loc: message for loc, message in found.items() if loc[:1] != ("routes",)}
    # The last first, so that the places of those before stay.
    for loc, message in sorted((others or found).items(), key=_rank, reverse=True):
        if loc in ((), ("kafka",)) or "servers" in loc[-2:]:
            _replace_servers(draft, loc, message)
        elif draft.get(loc) is not None:
            draft.remove(loc, f"is refused here: {message}")


def _rank(item: tuple[Loc, str]) -> list[tuple[str, int]]:
    return [("", step) if isinstance(step, int) else (step, 0) for step in item[0]]


def _replace_servers(draft: Draft, loc: Loc, message: str) -> None:
    """Let a variable name the brokers, if those of the source cannot be used."""
    target = loc[: loc.index("servers") + 1] if "servers" in loc else ("kafka", "servers")
    reference = draft.need_variable("KAFKA_SERVERS", "HOST:PORT of some brokers, with commas")
    if draft.get(target) == reference:
        raise GatewayError(f"the migrated configuration cannot be used: {message}")
    draft.report.drop_target(target, f"is refused here: {message}; KAFKA_SERVERS says it")
    draft.set(target, reference)


def _find_removable(loc: Loc) -> Loc:
    """Return the path to remove for the problem of an option, so that nothing is opened by it."""
    if loc[:1] in (("routes",), ("guards",), ("catalogs",)):
        return loc[:2]
    if loc[:2] == _ACCESS_CONTROL:
        return loc if isinstance(loc[-1], int) else loc[:2]
    if "sasl" in loc:
        return loc[: loc.index("sasl") + 1]
    if loc[:3] == ("telemetry", "metrics", "influx"):
        return loc[:3]
    if "topics" in loc:
        # The name of a topic is the topic; any other option can be left out alone.
        at = loc.index("topics") + 2
        return loc[:at] if loc[at : at + 1] in ((), ("name",)) else loc[: at + 1]
    return loc


def _remove_empty_sections(draft: Draft) -> None:
    """Remove empty sections, which are refused or would allow anything."""
    if draft.get((*_ACCESS_CONTROL, "allow", "origins")) == []:
        draft.remove(_ACCESS_CONTROL, "none of its origins is left")
    for section in ("guards", "catalogs", "routes"):
        if draft.get((section,)) in ({}, []):
            draft.values.pop(section)


def write_config(draft: Draft) -> WrittenConfig:
    order = {name: number for number, name in enumerate(SECTIONS)}
    names = sorted(draft.values, key=lambda name: order.get(name, len(order)))
    plain = _dump({name: draft.values[name] for name in names})
    loc_by_line = {mark.line: loc for loc, mark in Source.parse(plain, "").marks.items() if loc}
    near, far = _place_omissions(draft)
    lines = _list_head_lines(draft, far)
    locs: list[Loc] = [()] * len(lines)
    commented: set[Loc] = set()
    for number, line in enumerate(plain.splitlines(), 1):
        loc = loc_by_line.get(number, ())
        indent = line[: len(line) - len(line.lstrip())]
        comments = [] if line.startswith((" ", "-")) else [""]
        # An item begins on the line of its first member, and the comments of both stand above it.
        for length in range(1, len(loc) + 1):
            if loc[:length] not in commented:
                commented.add(loc[:length])
                for text in (*draft.comments.get(loc[:length], ()), *near.get(loc[:length], ())):
                    comments += _wrap_comment(text, indent)
        lines += [*comments, line]
        locs += [*([()] * len(comments)), loc]
    return WrittenConfig("\n".join(lines) + "\n", locs)


def _dump(values: Mapping[str, Any]) -> str:
    yaml = YAML()
    yaml.width = 1 << 20
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.ignore_aliases = lambda *_: True
    stream = io.StringIO()
    yaml.dump(dict(values), stream)
    return stream.getvalue()


def _place_omissions(draft: Draft) -> tuple[Mapping[Loc, Sequence[str]], Sequence[str]]:
    near: dict[Loc, list[str]] = {}
    far: list[str] = []
    for omission in draft.report.omissions:
        text = _describe_omission(draft, omission)
        if omission.near and draft.get(omission.near) is not None:
            near.setdefault(omission.near, []).append(f"Not carried over: {text}")
        else:
            far.append(f"- {text}")
    return near, far


def _describe_omission(draft: Draft, omission: Omission) -> str:
    mark = draft.report.source.marks.get(omission.loc)
    line = f"line {mark.line}, " if mark is not None else ""
    return f"{line}{format_loc(omission.loc) or 'the file'}{omission.describe()}"


def _list_head_lines(draft: Draft, omissions: Sequence[str]) -> list[str]:
    name = draft.report.source.name
    needed = [
        f"- {variable}{f': {description}' if description else ''}"
        for variable, description in draft.list_variables().items()
    ]
    optional = [
        f"- {variable}, if you need it: {description}"
        for variable, description in draft.list_variables(is_optional=True).items()
    ]
    paragraphs = [
        [
            f"Migrated from {name} by `gateway migrate`. Check it with `gateway check --cluster`, "
            "and start it with `gateway run`."
        ],
        [*(["Set these environment variables:"] if needed else []), *needed, *optional],
        [f"Not carried over from {name}:", *omissions] if omissions else [],
    ]
    lines = [SCHEMA_MODELINE, SCHEMA_HINT]
    for paragraph in filter(None, paragraphs):
        lines += ["#", *(line for text in paragraph for line in _wrap_comment(text, ""))]
    return lines


def _wrap_comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        "".join(char if char.isprintable() else " " for char in text),
        LINE_WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# {'  ' if text.startswith('- ') else ''}",
        break_long_words=False,
        break_on_hyphens=False,
    )
