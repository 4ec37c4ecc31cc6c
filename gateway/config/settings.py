"""The settings of a gateway: the YAML file as typed, frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from .catalog import SchemaRegistry
from .crosscheck import crosscheck
from .fields import Size, Text, within
from .guard import Guard
from .kafka import Kafka
from .listen import Listen
from .route import Route
from .section import Problem, Section
from .telemetry import Telemetry
from .units import show_size
from .warning import warnings


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
        default=Telemetry(), description="Metrics, traces and logs. For operators."
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
