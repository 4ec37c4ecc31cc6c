"""Define the section `telemetry`: metrics, traces and logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from gateway.config.types.address import Url
from gateway.config.types.fields import Duration, SecretText, Text, in_range
from gateway.config.types.path import PathPattern, is_reserved_path
from gateway.config.types.section import Problem, Section, create_value_error
from gateway.config.types.substitution import safe_repr, suggest
from gateway.config.types.units import format_share, parse_share
from gateway.telemetry.logs import COMPONENTS, LIBRARIES, PIPELINE_COMPONENTS

SHARE_PATTERN = r"^[0-9]+(\.[0-9]+)?%$"


def _validate_metrics_path(path: str) -> str:
    try:
        pattern = PathPattern.parse(path)
    except ValueError as error:
        raise create_value_error(str(error)) from None
    if pattern.params or pattern.has_wildcard or path == "/":
        raise create_value_error(f"path {path!r} is no fixed path; write such as /metrics")
    if is_reserved_path(path):
        raise create_value_error(
            f"path {path!r} is the gateway's own; use another, such as /metrics"
        )
    return path


def _validate_share(value: object) -> float:
    if not isinstance(value, str):
        raise create_value_error(f"{safe_repr(value)} is no share; write such as 1%")
    try:
        return parse_share(value)
    except ValueError as error:
        raise create_value_error(str(error)) from None


def _validate_logger_name(name: str) -> str:
    names = (*COMPONENTS, *PIPELINE_COMPONENTS, *LIBRARIES)
    if name not in names:
        raise create_value_error(
            f"no component or library logs as {safe_repr(name)}; "
            f"{suggest(name.removeprefix('gateway.'), names)}"
        )
    return name


Share: TypeAlias = Annotated[
    float,
    PlainValidator(_validate_share),
    PlainSerializer(format_share),
    WithJsonSchema({"type": "string", "pattern": SHARE_PATTERN}),
]
"""A share from 0 to 1, written as a percentage such as `1%`."""
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LoggerName: TypeAlias = Annotated[
    str,
    AfterValidator(_validate_logger_name),
    WithJsonSchema({"type": "string", "enum": [*COMPONENTS, *PIPELINE_COMPONENTS, *LIBRARIES]}),
]
"""A logger: a component of the gateway, or a library."""


class Influx(Section):
    """An InfluxDB that metrics are written to, in line protocol."""

    url: Url = Field(description="Base URL, such as http://influx:8086.")
    org: Text | None = Field(default=None, description="Organization of `bucket`, for InfluxDB 2.")
    bucket: Text | None = Field(
        default=None, description="Bucket to write to, for InfluxDB 2 and 3."
    )
    db: Text | None = Field(default=None, description="Database to write to, for InfluxDB 1.")
    token: SecretText | None = Field(
        default=None, description="API token; for InfluxDB 1, `user:password`."
    )
    interval: Annotated[Duration, in_range(1, 3600)] = Field(
        default=30.0, description="Time between two writes."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if bool(raw.get("bucket")) == bool(raw.get("db")):
            yield Problem((), "has no destination, or two; give it either bucket or db")
        if raw.get("db") and raw.get("org"):
            yield Problem(("org",), "belongs to a bucket, and InfluxDB 1 has none; remove it")


class Metrics(Section):
    """Where metrics can be scraped, and where they are sent."""

    prometheus: Annotated[Text, AfterValidator(_validate_metrics_path)] | None = Field(
        default="/metrics", description="Path at which metrics are scraped; null serves none."
    )
    otlp: Url | None = Field(
        default=None, description="OTLP/HTTP endpoint for metrics, such as http://collector:4318."
    )
    interval: Annotated[Duration, in_range(1, 3600)] = Field(
        default=30.0, description="Time between two exports to `otlp`."
    )
    influx: Influx | None = Field(
        default=None, description="InfluxDB that metrics are also written to, in line protocol."
    )


class Traces(Section):
    """Where spans are sent, and how many traces are recorded."""

    otlp: Url | None = Field(
        default=None, description="OTLP/HTTP endpoint for spans, such as http://collector:4318."
    )
    sample: Share = Field(
        default=0.01,
        description="Share of traces that are recorded; of those that another service began, "
        "only ones that it records.",
    )


class Logs(Section):
    """The format of log lines on stderr, and which lines are logged."""

    format: Literal["console", "json"] = Field(
        default="console", description="Lines for people (console), or a JSON object a line."
    )
    level: LogLevel = Field(default="info", description="The lowest level that is logged.")
    levels: dict[LoggerName, LogLevel] = Field(
        default={},
        description="The lowest level of components, such as `kafka.fetch: debug`, and of "
        "libraries.",
    )


class Telemetry(Section):
    """Metrics, traces and logs."""

    metrics: Metrics = Field(default=Metrics(), description="Where metrics go.")
    traces: Traces = Field(default=Traces(), description="Where spans are sent.")
    logs: Logs = Field(default=Logs(), description="Log lines on stderr.")
    headers: dict[Text, SecretText] = Field(
        default={}, description="Headers of requests to OTLP endpoints, such as authorization."
    )
