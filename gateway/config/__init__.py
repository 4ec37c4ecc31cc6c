"""Load and validate the YAML configuration.

A file is checked as a whole: every problem is reported at once, with line, column and a suggestion.
Start reading at `load` and `loads`. `types` has the types of single options, `sections` the
pydantic models and the checks between them, `guards` those of guards, `capabilities` those of what
routes do. `source` turns YAML into values that know their place.

Nothing in this package opens a connection. Settings are frozen, so that a reload finds unchanged
routes with `==`.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from gateway.config.capabilities import WITH_KINDS, FetchWith, ProduceWith, StreamWith
from gateway.config.capabilities.options import With
from gateway.config.sections.crosscheck import iter_warnings
from gateway.config.sections.guard_section import Credentials, GuardSection
from gateway.config.sections.guards import GUARD_KINDS, X509, Http, Inline, User
from gateway.config.sections.jwt import Jwk, Jwks, Jwt
from gateway.config.sections.kafka import Kafka, Model, Reconnect, Topic, Transform
from gateway.config.sections.listen import AccessControl, Limits, Listen, ListenTls
from gateway.config.sections.pipelines import Pipelines
from gateway.config.sections.route import Admin, Route
from gateway.config.sections.schema import build_json_schema
from gateway.config.sections.security import SchemaRegistry, Tls, Tokens
from gateway.config.sections.settings import Settings
from gateway.config.sections.telemetry import Influx, Logs
from gateway.config.sections.variables import (
    Override,
    Variable,
    list_variables,
    read_variables,
)
from gateway.config.source import problems
from gateway.config.source import yaml_document as source
from gateway.config.source.values_file import ValuesFile
from gateway.config.source.values_file import read_values as read_values
from gateway.config.source.yaml_document import dumps
from gateway.config.types.condition import Condition
from gateway.config.types.filters import parse_fields, parse_filter, parse_filters
from gateway.config.types.forms import expand
from gateway.config.types.path import PathPattern
from gateway.config.types.template import Template
from gateway.config.types.units import Rate
from gateway.errors import ConfigError

__all__ = [
    "GUARD_KINDS",
    "WITH_KINDS",
    "X509",
    "AccessControl",
    "Admin",
    "Condition",
    "Credentials",
    "FetchWith",
    "GuardSection",
    "Http",
    "Influx",
    "Inline",
    "Jwk",
    "Jwks",
    "Jwt",
    "Kafka",
    "Limits",
    "Listen",
    "ListenTls",
    "Logs",
    "Model",
    "PathPattern",
    "Pipelines",
    "ProduceWith",
    "Rate",
    "Reconnect",
    "Route",
    "SchemaRegistry",
    "Settings",
    "StreamWith",
    "Template",
    "Tls",
    "Tokens",
    "Topic",
    "Transform",
    "User",
    "Variable",
    "With",
    "build_json_schema",
    "create_locator",
    "dumps",
    "iter_warnings",
    "list_variables",
    "load",
    "loads",
    "parse_fields",
    "parse_filter",
    "parse_filters",
    "read_variables",
]

log = logging.getLogger(__name__)

COMMAND_LINE = "the command line"  # the origin of options, for messages


def load(
    path: str | os.PathLike[str],
    *,
    values: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    environ: Mapping[str, str] = os.environ,
    warn: Callable[[str], None] | None = None,
) -> Settings:
    """Load the settings of a file, and of the environment variables that set options.

    The variables, such as GATEWAY_LISTEN__PORT, override both files; see `sections.variables`.

    Args:
        values: A file of single options that override it; see `source.values_file`.
        options: Values by the paths of options, such as `listen.port`, which override everything
            else. None is ignored.
        warn: Called with a line for each old spelling and for each variable that sets nothing. By
            default these are logged, once in this process.

    Raises:
        ConfigError: With every problem that was found.
    """
    name = os.fspath(path)
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError([f"{name}:1:1: cannot be read ({reason}); check the path"]) from None
    return loads(
        source.decode_utf8(raw, name=name),
        name=name,
        environ=environ,
        values=None if values is None else read_values(values),
        options=options,
        with_variables=True,
        warn=warn,
    )


def loads(
    text: str,
    *,
    name: str = "<string>",
    environ: Mapping[str, str] = os.environ,
    values: ValuesFile | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    with_variables: bool = False,
    warn: Callable[[str], None] | None = None,
) -> Settings:
    """Load the settings of a YAML text; see `load`.

    Args:
        name: The name of its file. `${file:...}` is relative to the folder of this file.
        with_variables: Whether variables such as GATEWAY_LISTEN__PORT override the text.
    """
    overrides = values or ValuesFile()
    warn = warn or _log_warning
    document = source.parse_document(
        text, name=name, environ=environ, substitutions=overrides.texts
    )
    for line in _expand_document(document):
        warn(line)
    document.values = overrides.apply_to(document.values)
    changes: list[Override] = []
    if with_variables:
        referenced = re.findall(r"\$\{env\.([A-Za-z0-9_]+)", text)
        changes, warnings = read_variables(environ, document.values, referenced)
        for line in warnings:
            warn(line)
    for option, value in options.items():
        if value is not None:
            changes.append(Override(tuple(option.split(".")), value, COMMAND_LINE))
    changed = _change_document(document, changes)
    if changed.values is None and not document.problems:  # a file with `null` and nothing else
        return loads("", name=name, environ=environ, values=values, options=options)
    settings, lines = _validate_document(changed)
    if settings is not None and not lines:
        return settings
    raise ConfigError(_name_causes(document, changes, lines)) from None


def _change_document(
    document: source.YamlDocument, changes: Sequence[Override]
) -> source.YamlDocument:
    changed = replace(document, moves=dict(document.moves), origins={})
    for loc, value, origin in changes:
        changed.override(loc, value, origin)
    if changes:
        _expand_document(changed)
    return changed


def _validate_document(document: source.YamlDocument) -> tuple[Settings | None, list[str]]:
    """Return the settings of a document, None if they are wrong, and a line for each problem."""
    settings, error = None, None
    if document.values is not None:
        try:
            context = {"base": str(Path(document.name).parent)}
            settings = Settings.model_validate(document.values, context=context)
        except ValidationError as validation_error:
            error = validation_error
    return settings, problems.format_problems(document, error, Settings)


def _name_causes(
    document: source.YamlDocument, changes: Sequence[Override], lines: Sequence[str]
) -> list[str]:
    """Return the lines of problems; those of the file that a variable or option causes name it.

    Without the cause the problem must be gone, and no other one be there in its place.
    """
    causes: dict[str, str] = {}
    for origin in dict.fromkeys(change.origin for change in changes):
        others = [change for change in changes if change.origin != origin]
        _, remaining = _validate_document(_change_document(document, others))
        if set(remaining) <= set(lines):
            for line in set(lines) - set(remaining):
                causes.setdefault(line, origin)
    prefix = f"{document.name}:"
    return [
        f"{line} (caused by {causes[line]})" if line.startswith(prefix) and line in causes else line
        for line in lines
    ]


def create_locator(path: str | os.PathLike[str]) -> Callable[[tuple[str | int, ...], str], str]:
    """Return a function that formats a problem with its place in a file without errors.

    It takes the path of an option and a message, and returns `file:line:column: path: message`.
    """
    name = os.fspath(path)
    text = source.decode_utf8(Path(path).read_bytes(), name=name)
    document = source.parse_document(text, name=name, environ=os.environ)
    _expand_document(document)
    return lambda loc, message: problems.format_problem(document, loc, message)


def _expand_document(document: source.YamlDocument) -> Iterator[str]:
    """Write the shorthands and old spellings of a document out; return a line for each of these."""
    expansion = expand(Settings, document.values)
    document.values = expansion.values
    document.moves |= expansion.moves
    return problems.iter_old_spellings(document, expansion.old_spellings)


@functools.cache
def _log_warning(line: str) -> None:
    """Log a warning about a file, once in this process however often the file is loaded."""
    log.warning("%s", line)
