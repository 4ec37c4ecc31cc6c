"""What operators see: metrics, traces, logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from gateway.config.checks.crosscheck import RESERVED_PATHS
from gateway.config.source.substitution import safe_repr
from gateway.config.types.address import Url
from gateway.config.types.fields import Duration, SecretText, Text, in_range
from gateway.config.types.path import PathPattern
from gateway.config.types.section import Problem, Section, create_value_error
from gateway.config.types.units import format_share, parse_share

SHARE_PATTERN = r"^[0-9]+(\.[0-9]+)?%$"


def _validate_metrics_path(path: str) -> str:
    try:
        pattern = PathPattern.parse(path)
    except ValueError as error:
        raise create_value_error(str(error)) from None
    if pattern.params or pattern.has_wildcard or path == "/":
        raise create_value_error(f"path {path!r} is no fixed path; write such as /metrics")
    if path in RESERVED_PATHS:
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


Share: TypeAlias = Annotated[
    float,
    PlainValidator(_validate_share),
    PlainSerializer(format_share),
    WithJsonSchema({"type": "string", "pattern": SHARE_PATTERN}),
]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LoggerName: TypeAlias = Literal[
    "kafka", "hub", "web", "api", "sidecar", "formats", "telemetry",
    "aiokafka", "httpx", "uvicorn", "opentelemetry",
]  # fmt: skip


class Influx(Section):
    """Where InfluxDB takes line protocol."""

    url: Url = Field(description="Its base URL, such as http://influx:8086. For InfluxDB.")
    org: Text | None = Field(default=None, description="Organization, of InfluxDB 2. For the same.")
    bucket: Text | None = Field(
        default=None, description="Bucket, of InfluxDB 2 or 3. For the same."
    )
    db: Text | None = Field(default=None, description="Database, of InfluxDB 1. For older ones.")
    token: SecretText | None = Field(
        default=None,
        description="API token; of InfluxDB 1 `user:password`. For those that ask for one.",
    )
    interval: Annotated[Duration, in_range(1, 3600)] = Field(
        default=30.0, description="How often figures are sent there. For the same."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if bool(raw.get("bucket")) == bool(raw.get("db")):
            yield Problem((), "is written to nothing, or to two; give it either bucket or db")
        if raw.get("db") and raw.get("org"):
            yield Problem(("org",), "belongs to a bucket; InfluxDB 1 has none: remove it")


class Metrics(Section):
    prometheus: Annotated[Text, AfterValidator(_validate_metrics_path)] | None = Field(
        default="/metrics", description="Path to scrape, null for none. For Prometheus."
    )
    otlp: Url | None = Field(
        default=None,
        description="OTLP/HTTP endpoint that they are sent to, such as http://collector:4318. For "
        "back ends that do not scrape.",
    )
    interval: Annotated[Duration, in_range(1, 3600)] = Field(
        default=30.0, description="How often they are sent there. For the same."
    )
    influx: Influx | None = Field(
        default=None, description="InfluxDB that they are sent to as well. For its users."
    )


class Traces(Section):
    otlp: Url | None = Field(
        default=None,
        description="OTLP/HTTP endpoint, such as http://collector:4318. For tracing back ends.",
    )
    sample: Share = Field(
        default=0.01,
        description="Share of traces that are recorded; of those begun elsewhere only ones that "
        "are recorded there, too. For busy gateways.",
    )


class Logs(Section):
    format: Literal["console", "json"] = Field(
        default="console", description="Lines to read, or JSON objects. For collectors of logs."
    )
    level: LogLevel = Field(default="info", description="What is logged at all. For operators.")
    levels: dict[LoggerName, LogLevel] = Field(
        default={}, description="Of single rooms, such as kafka: debug. For finding causes."
    )


class Telemetry(Section):
    metrics: Metrics = Field(default=Metrics(), description="Figures. For operators.")
    traces: Traces = Field(default=Traces(), description="Spans. For operators.")
    logs: Logs = Field(default=Logs(), description="Lines on stderr. For operators.")
    headers: dict[Text, SecretText] = Field(
        default={},
        description="Sent along to OTLP endpoints, such as authorization. For hosted back ends.",
    )
