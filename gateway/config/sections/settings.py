"""Define the settings of a gateway: the whole YAML file as typed, frozen values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from gateway.config.capabilities import Correlation
from gateway.config.types.fields import Size, Text, in_range
from gateway.config.types.forms import expand
from gateway.config.types.section import (
    ErrorKey,
    Loc,
    Section,
    build_details,
    build_error,
    read_errors,
)
from gateway.config.types.template import Template
from gateway.config.types.units import format_size
from gateway.config.types.valid_rest import ValidRest

from .crosscheck import check_settings
from .guards import AnyGuardSection
from .kafka import Clusters, Kafka
from .listen import Listen
from .pipelines import Pipelines
from .route import Admin, Route
from .security import SchemaRegistry, Tokens
from .sidecar import Sidecar
from .telemetry import Telemetry


class Settings(Section):
    """A whole configuration.

    Most programs get one from `gateway.config.load`. `Settings.model_validate` creates one from a
    mapping with the keys and values of the YAML file.
    """

    name: Text = Field(
        default="gateway", description="Name of the gateway in client ids, metrics and logs."
    )
    listen: Listen = Field(default=Listen(), description="The port for clients.")
    kafka: Clusters = Field(description="The Kafka cluster, or several by name.")
    routes: tuple[Route, ...] = Field(
        default=(), description="Paths, and what they stream, show or write."
    )
    guards: dict[Text, AnyGuardSection] = Field(
        default={}, description="How clients are identified, by the name of the guard."
    )
    catalogs: dict[Text, SchemaRegistry] = Field(
        default={}, description="Schema registries, by name."
    )
    telemetry: Telemetry = Field(
        default=Telemetry(), description="Where metrics, traces and logs go."
    )
    admin: Admin | None = Field(
        default=None, description="A separate port to list and end streams."
    )
    sidecar: Sidecar | None = Field(default=None, description="Kafka over HTTP for programs.")
    pipelines: Pipelines | None = Field(
        default=None, description="Spark jobs that read and write topics."
    )
    tokens: Tokens = Field(
        default=Tokens(),
        description="How resume tokens are signed, and how old they may be.",
    )
    memory: Annotated[Size, in_range(1024**2, 1024**5, format_size)] = Field(
        default=1024**3, description="Memory bound of all caches and buffers of a process together."
    )

    @model_validator(mode="after")
    def _assign_client_ids(self) -> Self:
        clusters = {name: self._add_client_id(kafka) for name, kafka in self.clusters.items()}
        # Sections are frozen, so only a validator may assign, and not in the usual way.
        object.__setattr__(self, "kafka", clusters.get("", clusters))
        return self

    @model_validator(mode="after")
    def _name_routes(self) -> Self:
        counts = Counter(route.path for route in self.routes)
        for route in self.routes:
            object.__setattr__(route, "shares_path", counts[route.path] > 1)
        return self

    def _add_client_id(self, kafka: Kafka) -> Kafka:
        if kafka.client_id:
            return kafka
        return kafka.model_copy(update={"client_id": f"gateway-{self.name}"})

    @property
    def clusters(self) -> Mapping[str, Kafka]:
        """The clusters by name; the name of a single cluster is empty."""
        return {"": self.kafka} if isinstance(self.kafka, Kafka) else self.kafka

    @cached_property
    def request_header_names(self) -> frozenset[str]:
        """The headers, in lower case, by which services know a request and where to reply.

        The gateway alone writes them. Those by default may be another gateway's, of the same topic.
        """
        names = {":method", ":path"}
        sections = [getattr(route.with_, "correlation", None) for route in self.routes]
        for section in (Correlation(), *sections):
            if section is not None:
                names |= {section.reply_to.lower(), section.correlation_id.lower()}
        return frozenset(names)

    def iter_clusters(self) -> Iterator[tuple[Loc, Kafka]]:
        """Yield the clusters with their paths in the file."""
        for name, kafka in self.clusters.items():
            yield ("kafka", name) if name else ("kafka",), kafka

    def get_cluster_name(self, route: Route) -> str:
        """Return the name of the cluster of a route: the one it names, or that lists its topics.

        `crosscheck` has found the routes of these settings to be unambiguous.
        """
        names = list(self.clusters)
        found = self.find_clusters(route.with_.topic_templates) if len(names) > 1 else names
        return route.with_.kafka or (found or names)[0]

    def get_kafka(self, route: Route) -> Kafka:
        return self.clusters[self.get_cluster_name(route)]

    def find_clusters(self, templates: Iterable[Template]) -> list[str]:
        """Return the names of the clusters that have a match for each of these topics."""
        wanted = list(templates)
        return [
            name
            for name in self.clusters
            if all(any(map(each.can_render, self.list_topics(name))) for each in wanted)
        ]

    def find_cluster_names(self, topics: Iterable[str]) -> list[str]:
        """Return the names of the clusters that list all of these topics.

        A single cluster is always returned: it may have topics that the file does not list.
        """
        wanted = set(topics) if len(self.clusters) > 1 else set()
        return [name for name in self.clusters if wanted <= set(self.list_topics(name))]

    def list_topics(self, cluster: str | None) -> list[str]:
        """Return the topics that a cluster lists; those of all clusters if it is not known."""
        known = self.clusters
        chosen = (
            [known[cluster]] if cluster is not None and cluster in known else list(known.values())
        )
        return list(dict.fromkeys(topic.name for kafka in chosen for topic in kafka.topics))

    @classmethod
    def normalize(cls, value: Any) -> Any:
        """Return the long form of all sections."""
        return expand(cls, value).values

    @model_validator(mode="wrap")
    @classmethod
    def _validate_with_checks(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate, and check what is valid of the sections against each other."""
        data = cls.normalize(data)
        if not isinstance(data, Mapping):
            return handler(data)
        errors: dict[ErrorKey, InitErrorDetails] = {}
        settings, rest = None, ValidRest(data)
        try:
            settings = handler(data)
        except ValidationError as error:
            errors = read_errors(error)
        if errors or rest.lost:
            settings = rest.validate(handler, errors)
        problems = () if settings is None else rest.filter_problems(check_settings(settings))
        details = (*errors.values(), *map(build_details, problems))
        if details:
            raise build_error(details)
        assert isinstance(settings, cls)
        return settings
