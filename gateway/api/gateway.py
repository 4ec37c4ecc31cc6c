"""Run a gateway within a program: what the routes of a server stream, as objects."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from pydantic import ValidationError

from gateway.config import Settings, load
from gateway.config.source.problems import format_loc
from gateway.config.types.substitution import suggest
from gateway.core.client.terms import EndReason
from gateway.errors import ConfigError, GatewayError
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import ClusterTopic, Hubs
from gateway.hub.writes.publisher import Produced
from gateway.hub.writes.writer import RecordWriter
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.version import __version__

from .events import Gap
from .options import From, Until, build_start, build_view
from .stream import NOT_RUNNING, Stream

if TYPE_CHECKING:
    from gateway.telemetry.traces import Tracing

__all__ = ["Gateway", "Produced"]

Header: TypeAlias = tuple[str, bytes | str | None]


class Gateway:
    """Read each partition once for any number of streams, and write records.

        async with Gateway(servers="localhost:9092") as gateway:
            async for record in gateway.subscribe("orders"):
                print(record.key, record.json())

    It may be started again after it was closed.

    Args:
        settings: `Settings`, or the path of a YAML file. Routes are for servers; here, any topic
            can be read, with its options of `kafka.topics` if it has some.
        servers: In place of settings: `host:port`, several of them, or `embedded`.
        kafka: With `servers`: other options of the section `kafka`, by their names
            (`security=...`).

    Attributes:
        settings: The settings.
        clusters: The connections to each cluster, by name.
        hubs: The hubs of the clusters.
        tracing: Traces records while the gateway runs, if that is configured; else None.

    Raises:
        ConfigError: The settings are not valid.
    """

    def __init__(
        self,
        settings: Settings | str | os.PathLike[str] | None = None,
        *,
        servers: str | Iterable[str] | None = None,
        **kafka: Any,
    ) -> None:
        if (settings is None) == (servers is None) or (kafka and servers is None):
            raise TypeError("give settings, or servers and options of the section kafka")
        if servers is not None:
            self.settings = _build_settings(servers, kafka)
        else:
            self.settings = settings if isinstance(settings, Settings) else load(settings or "")
        clusters = self.settings.clusters
        self.clusters = {
            name: Cluster(ClusterSettings.from_config(kafka, name=name))
            for name, kafka in clusters.items()
        }
        self.hubs = Hubs(self.clusters, self.settings)
        self.tracing: Tracing | None = None
        if self.settings.telemetry.traces.otlp is not None:
            # Imported now, because it takes long and would block a running event loop.
            importlib.import_module("gateway.telemetry.traces")
        self._writers: dict[str, RecordWriter] = {}

    @property
    def hub(self) -> Hub:
        """Return the hub of the cluster; of several clusters, that of the first one."""
        return next(iter(self.hubs))

    async def start(self) -> None:
        """Begin to connect to Kafka; return at once.

        Raises:
            GatewayError: The gateway is started already, or its servers are `embedded`.
        """
        if self.hubs.started:
            raise GatewayError("this gateway is started already; close it first")
        if any(kafka.servers == "embedded" for kafka in self.settings.clusters.values()):
            raise GatewayError(
                "servers: embedded is for the command line; within a program, use "
                "`with EmbeddedKafka(...) as kafka:` and servers=kafka.bootstrap"
            )
        self.tracing = _create_tracing(self.settings)
        await self.hubs.start(self.tracing)
        self._writers = {hub.name: hub.create_writer() for hub in self.hubs}

    async def close(self) -> None:
        """End all streams and close all connections."""
        self.hubs.drain(EndReason.CLOSED)
        await self.hubs.close()
        tracing, self.tracing = self.tracing, None
        if tracing is not None:
            await tracing.close()

    def adopt(self, settings: Settings) -> frozenset[ClusterTopic]:
        """Apply other settings, except for those of the connection to Kafka.

        Returns:
            The topics that are read from scratch because of the new settings. The caller must move
                their clients on (see `EndReason.CHANGED`).
        """
        self.settings = settings
        return self.hubs.apply_settings(settings)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def subscribe(
        self,
        topics: str | Iterable[str],
        *,
        start: From = "live",
        position: str | None = None,
        until: Until | None = None,
        filters: Any = None,
        fields: str | Iterable[str] = (),
        kafka: str | None = None,
        on_gap: Callable[[Gap], object] | None = None,
    ) -> Stream:
        """Return the records of one or several topics as an async iterator; see `Stream`.

        Args:
            topics: The name of a topic, or several.
            start: `live` for what comes from now on; `earliest`; a datetime, or a timedelta back
                from now, by the records' timestamps.
            position: A token to go on from, such as `record.position`; it takes precedence over
                `start`.
            until: `latest` to end where the topics end now; a datetime; or a number of records.
            filters: Filters as in a configuration: `{"key": "ada"}`, `{"value": {"/amount": {"gte":
                10}}}`, or a list of such, of which any may match.
            fields: The parts of a JSON value that are shown, as JSON pointers; all of it if there
                are none.
            kafka: The name of the cluster to read. It is needed if more than one cluster lists the
                topics, or none.
            on_gap: Called with each gap that a loop over records comes across; without it, gaps are
                logged.

        Raises:
            ValueError: An argument cannot be understood.
            TokenCorrupt: The position is not a token.
        """
        view = build_view(topics, filters, fields)
        hub = self._find_hub(view.topics, kafka)
        return Stream(hub, view, build_start(start, position, until), on_gap)

    async def produce(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str | None] | Iterable[Header] = (),
        partition: int | None = None,
        idempotency_key: str | None = None,
        kafka: str | None = None,
    ) -> Produced:
        """Write one record, and return where it is once Kafka has it on all replicas in sync.

        Records of one partition are written in the order of the calls.

        Args:
            topic: The name of the topic.
            value: The value; text is encoded as UTF-8, None is a tombstone.
            key: The key; None for none.
            headers: Names and contents; pairs if a name occurs more than once.
            partition: The partition; None for by key, as other Kafka clients do it.
            idempotency_key: A key such as a UUID. The same record with the same key, tried again
                within ten minutes by this process or another, is in Kafka once (`repeated`).
            kafka: The name of the cluster, as in `subscribe`.

        Raises:
            UnknownTopic: The topic does not exist.
            AccessDenied: The brokers do not let the gateway write to the topic.
            AuthenticationFailed: The brokers refuse the gateway's credentials.
            BrokerUnavailable: Nothing was written; or, if its `timeout` is true, it may yet be
                written: repeat it with its idempotency key.
            KeyReused: The idempotency key was used for another record.
            RecordRefused: Kafka or the gateway does not accept the record.
            FormatError: The record does not match the model of its topic.
            RegistryUnavailable: A schema is needed, and the registry cannot be reached.
            GatewayError: This gateway does not run.
            ValueError: It is not clear which cluster to write to.
        """
        if not self.hubs.started:
            raise GatewayError(NOT_RUNNING)
        writer = self._writers[self._find_hub((topic,), kafka).name]
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        contents = [(name, _encode_text(content)) for name, content in pairs]
        return await writer.send(
            topic, _encode_text(key), _encode_text(value), contents,
            partition=partition, idempotency_key=idempotency_key,
        )  # fmt: skip

    def _find_hub(self, topics: Sequence[str], kafka: str | None) -> Hub:
        """Return the hub of the cluster that has the topics.

        Raises:
            ValueError: It is not clear which cluster that is.
        """
        names = list(self.settings.clusters)
        if kafka is not None:
            if kafka not in names or not kafka:
                cluster_names = [name for name in names if name]
                hint = suggest(kafka, cluster_names, "leave it out")
                raise ValueError(f"there is no cluster {kafka!r}; {hint}")
            return self.hubs.get_hub(kafka)
        hubs = self.hubs.find_hubs(topics)
        if len(hubs) != 1:
            where = "several clusters list" if hubs else "no cluster lists"
            problem = f"{where} {', '.join(topics)}; say which, by kafka="
            raise ValueError(f"{problem}{' or '.join(map(repr, names))}")
        return hubs[0]


def _create_tracing(settings: Settings) -> Tracing | None:
    """Return what traces records; None if nothing is configured.

    OpenTelemetry is imported only if it is needed.
    """
    traces, headers = settings.telemetry.traces, settings.telemetry.headers
    if traces.otlp is None:
        return None
    from gateway.telemetry.otlp import build_resource
    from gateway.telemetry.traces import Tracing

    return Tracing(
        traces.otlp,
        share=traces.sample,
        headers={name: secret.get_secret_value() for name, secret in headers.items()},
        resource=build_resource(settings.name, __version__),
    )


def _encode_text(text: bytes | str | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _build_settings(servers: str | Iterable[str], kafka: dict[str, Any]) -> Settings:
    """Return settings with these servers and options of the section `kafka`."""
    value: Any = list(servers) if not isinstance(servers, str) else servers
    if isinstance(value, str) and value != "embedded":
        value = [server.strip() for server in value.split(",")]
    try:
        return Settings.model_validate({"kafka": {"servers": value, **kafka}})
    except ValidationError as error:
        problems = [f"{format_loc(item['loc'])}: {item['msg']}" for item in error.errors()]
        raise ConfigError(problems) from None
