"""The settings of a gateway: the YAML file as typed, frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from gateway.config.checks.clusters import find_clusters
from gateway.config.checks.crosscheck import check_settings
from gateway.config.types.fields import Size, Text, in_range
from gateway.config.types.section import Problem, Section
from gateway.config.types.units import format_size

from .admin import Admin
from .catalog import SchemaRegistry
from .guard import Guard
from .kafka import Clusters, Kafka
from .listen import Listen
from .pipelines import Pipelines
from .route import Route
from .sidecar import Sidecar
from .telemetry import Telemetry
from .tokens import Tokens


class Settings(Section):
    """A whole configuration. `Settings.model_validate` reads the YAML's words too."""

    name: Text = Field(
        default="gateway", description="Name in client.id, metrics and logs. For operators."
    )
    listen: Listen = Field(default=Listen(), description="Where clients come in. For operators.")
    kafka: Clusters = Field(
        description="Where records come from: one Kafka, or several by name. For operators."
    )
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
    admin: Admin | None = Field(
        default=None,
        description="A port where streams are listed and ended; none by default. For operators.",
    )
    sidecar: Sidecar | None = Field(
        default=None,
        description="Kafka over HTTP, for programs; none by default. For back ends or bridges.",
    )
    pipelines: Pipelines | None = Field(
        default=None,
        description="Spark jobs from topics to topics; none by default. For data teams.",
    )
    tokens: Tokens = Field(
        default=Tokens(), description="What resume tokens are trusted by. For public gateways."
    )
    memory: Annotated[Size, in_range(1024**2, 1024**5, format_size)] = Field(
        default=1024**3,
        description="Bound of all caches and buffers together. For whoever sizes hosts.",
    )

    @model_validator(mode="after")
    def _assign_client_ids(self) -> Self:
        named = {name: self._with_client_id(kafka) for name, kafka in self.clusters.items()}
        object.__setattr__(self, "kafka", named.get("", named))
        return self

    def _with_client_id(self, kafka: Kafka) -> Kafka:
        if kafka.client_id:
            return kafka
        return kafka.model_copy(update={"client_id": f"gateway-{self.name}"})

    @property
    def clusters(self) -> Mapping[str, Kafka]:
        """By name; one that has none by an empty one."""
        return {"": self.kafka} if isinstance(self.kafka, Kafka) else self.kafka

    def get_cluster_name(self, route: Route) -> str:
        """The name of the cluster that a route is of."""
        topics = {
            name: [topic.name for topic in kafka.topics] for name, kafka in self.clusters.items()
        }
        found = (
            find_clusters(topics, route.with_.topic_templates) if len(topics) > 1 else list(topics)
        )
        return route.with_.kafka or (found or list(topics))[0]

    def find_cluster_names(self, topics: Iterable[str]) -> list[str]:
        """The names of the clusters that list all of these; of the only one in any case."""
        wanted = list(topics)
        several = len(self.clusters) > 1
        return [
            name
            for name, kafka in self.clusters.items()
            if not several or all(kafka.find_topic(topic) for topic in wanted)
        ]

    def get_kafka(self, route: Route) -> Kafka:
        """The cluster that a route is of."""
        return self.clusters[self.get_cluster_name(route)]

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        return check_settings(raw)
