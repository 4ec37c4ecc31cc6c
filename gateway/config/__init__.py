"""The configuration: a YAML file checked as a whole, with line, column and a suggestion.

Nothing here connects to anything. What is returned is frozen, so a reload can tell an
unchanged route by `==`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from ..errors import ConfigError
from . import problems, source
from .admin import Admin
from .catalog import SchemaRegistry
from .condition import Condition, Filter
from .credentials import Credentials
from .dump import dump
from .filters import fields_of, filters_of, filters_of_all
from .guard import X509, Forward, Guard, Http, Inline, User
from .jwk import Jwk
from .jwt import Jwks, Jwt
from .kafka import Cache, Kafka, Model, Reconnect, Topic, Transform
from .listen import AccessControl, Allow, Expose, Limits, Listen, ListenTls
from .path import PathPattern
from .route import Route, When, With
from .schema import schema
from .security import Sasl, Security, Tls
from .settings import Settings
from .telemetry import Logs, Metrics, Telemetry, Traces
from .template import Template
from .units import Rate

__all__ = [
    "X509",
    "AccessControl",
    "Admin",
    "Allow",
    "Cache",
    "Condition",
    "Credentials",
    "Expose",
    "Filter",
    "Forward",
    "Guard",
    "Http",
    "Inline",
    "Jwk",
    "Jwks",
    "Jwt",
    "Kafka",
    "Limits",
    "Listen",
    "ListenTls",
    "Logs",
    "Metrics",
    "Model",
    "PathPattern",
    "Rate",
    "Reconnect",
    "Route",
    "Sasl",
    "SchemaRegistry",
    "Security",
    "Settings",
    "Telemetry",
    "Template",
    "Tls",
    "Topic",
    "Traces",
    "Transform",
    "User",
    "When",
    "With",
    "dump",
    "fields_of",
    "filters_of",
    "filters_of_all",
    "load",
    "loads",
    "schema",
]


def load(path: str | os.PathLike[str]) -> Settings:
    """The settings of a file. Raises ConfigError with every problem found in it."""
    name = os.fspath(path)
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError([f"{name}:1:1: cannot be read ({reason}); check the path"]) from None
    return loads(source.decode(raw, name=name), name=name)


def loads(
    text: str, *, name: str = "<string>", environ: Mapping[str, str] = os.environ
) -> Settings:
    """The settings of a text; `name` is its file, whose folder `${file:...}` starts at.

    Raises ConfigError with every problem found in it.
    """
    document = source.read(text, name=name, environ=environ)
    error: ValidationError | None = None
    if document.values is not None:
        try:
            context = {"base": str(Path(name).parent)}
            settings = Settings.model_validate(document.values, context=context)
            if not document.problems:
                return settings
        except ValidationError as refused:
            error = refused
    elif not document.problems:  # a file with `null` and nothing else
        return loads("", name=name, environ=environ)
    raise ConfigError(problems.lines(document, error, Settings)) from None
