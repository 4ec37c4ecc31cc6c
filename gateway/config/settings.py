"""The settings of a gateway: the YAML file as typed, frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from .address import Url
from .catalog import SchemaRegistry
from .crosscheck import RESERVED, crosscheck
from .fields import Size, Text, within
from .guard import Guard
from .kafka import Kafka
from .listen import Listen
from .path import PathPattern
from .route import Route
from .section import Problem, Section, refused
from .units import show_size
from .warning import warnings


def _metrics_path(path: str) -> str:
    try:
        pattern = PathPattern.parse(path)
    except ValueError as error:
        raise refused(str(error)) from None
    if pattern.params or pattern.rest or path == "/":
        raise refused(f"path {path!r} is no fixed path; write such as /metrics")
    if path in RESERVED:
        raise refused(f"path {path!r} is the gateway's own; use another, such as /metrics")
    return path


class Metrics(Section):
    prometheus: Annotated[Text, AfterValidator(_metrics_path)] | None = Field(
        default="/metrics", description="Path to scrape, null for none. For Prometheus."
    )


class Traces(Section):
    otlp: Url | None = Field(default=None, description="OTLP/HTTP endpoint. For tracing back ends.")


class Telemetry(Section):
    metrics: Metrics = Field(default=Metrics(), description="Figures. For operators.")
    traces: Traces = Field(default=Traces(), description="Spans. For operators.")


class Settings(Section):
    """A whole configuration. `Settings.model_validate` reads the YAML's words too."""

    name: Text = Field(
        default="gateway", description="Name in client.id, metrics and logs. For operators."
    )
    listen: Listen = Field(default=Listen(), description="Where clients come in. For operators.")
    kafka: Kafka = Field(description="Where records come from. For operators.")
    routes: tuple[Route, ...] = Field(
        default=(), description="Which paths stream what. For clients."
    )
    guards: dict[Text, Guard] = Field(
        default={}, description="Who a client is. For `guarded` of routes."
    )
    catalogs: dict[Text, SchemaRegistry] = Field(
        default={}, description="Schemas. For typed records."
    )
    telemetry: Telemetry = Field(
        default=Telemetry(), description="Metrics and traces. For operators."
    )
    memory: Annotated[Size, within(1024**2, 1024**5, show_size)] = Field(
        default=1024**3,
        description="Bound of all caches and buffers together. For whoever sizes hosts.",
    )

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not self.kafka.client_id:
            kafka = self.kafka.model_copy(update={"client_id": f"gateway-{self.name}"})
            object.__setattr__(self, "kafka", kafka)
        return self

    @classmethod
    def look(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        return crosscheck(raw)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What works, but perhaps not as meant; one line each."""
        return tuple(warnings(self))
