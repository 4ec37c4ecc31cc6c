"""Make a migrated configuration one that `gateway check` accepts.

The configuration's own checks decide whether the converted values can be used. Refused values are
removed, and reported with the message of the check. Removing never opens anything: a route goes as
a whole, and with a guard go the routes that it guards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import certifi

from gateway.config import loads
from gateway.config.types.section import Loc
from gateway.errors import ConfigError, GatewayError

from .draft import Draft
from .source import iter_leaves
from .writer import WrittenConfig, write_config

_ACCESS_CONTROL = ("listen", "access-control")
MAX_ROUNDS = 1000  # each removes something; a file has far fewer options
EXAMPLE_URL = "https://migrated.example"
# 32 bytes in base64url, the least that a shared secret has (RFC 7518 3.2).
EXAMPLE_KEY = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA"

_WHOLE_VARIABLE = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}")
_REQUIRED_FILES = frozenset({"certificate", "key", "tokenFile"})
_URL_OPTIONS = frozenset({"url", "issuer", "otlp", "keys", "tokenUrl"})


def prune(draft: Draft, file: Path, stand_in: Path) -> WrittenConfig:
    """Remove refused values until none is left, and return the rest as a file.

    Args:
        stand_in: A file that exists, for variables that name files.
    """
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
            environ[match[1]] = _choose_example(loc, stand_in)
    return environ


def _choose_example(loc: Loc, stand_in: Path) -> str:
    option = next((step for step in reversed(loc) if isinstance(step, str)), "")
    if option == "servers":
        return "localhost:9092"
    if option == "k":
        return EXAMPLE_KEY
    if option == "port":
        return "8080"
    if option in ("host", "hosts"):
        return "localhost"
    if option == "origins":
        return EXAMPLE_URL
    if option == "ca":
        return certifi.where()  # the authorities of a file are loaded
    if option in _REQUIRED_FILES:
        return str(stand_in.resolve())
    return EXAMPLE_URL if option in _URL_OPTIONS else "x"


def _remove_problems(
    draft: Draft, written: WrittenConfig, problems: Sequence[str], name: str
) -> None:
    """Remove refused values; routes only if nothing else is left to remove."""
    found: dict[Loc, str] = {}
    for problem in problems:
        match = re.match(rf"{re.escape(name)}:(\d+):\d+: (.*)", problem, re.DOTALL)
        if match is None:
            raise GatewayError(f"the migrated configuration cannot be used: {problem}")
        loc = written.find_loc(int(match[1]))
        item = re.match(r"\S+\.origins\[(\d+)\]: ", match[2])  # the list is on one line
        loc = _find_removable(loc if item is None else (*loc, int(item[1])))
        found.setdefault(loc, match[2])
    others = {loc: message for loc, message in found.items() if loc[:1] != ("routes",)}
    # The last first, so that the places of those before stay.
    for loc, message in sorted((others or found).items(), key=_rank, reverse=True):
        if loc in ((), ("kafka",)) or loc[-1] == "servers":
            _replace_servers(draft, loc, message)
        elif draft.get(loc) is not None:
            draft.remove(loc, f"is refused here: {message}")


def _rank(item: tuple[Loc, str]) -> list[tuple[str, int]]:
    return [("", step) if isinstance(step, int) else (step, 0) for step in item[0]]


def _replace_servers(draft: Draft, loc: Loc, message: str) -> None:
    """Let a variable name the brokers, if those of the source cannot be used."""
    target = loc if loc[-1:] == ("servers",) else ("kafka", "servers")
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
