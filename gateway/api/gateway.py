"""A gateway within a program: what the routes of a server stream, as objects."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from pydantic import ValidationError

from gateway.config import Settings, load
from gateway.config.source.expression import suggest
from gateway.config.source.problems import format_loc
from gateway.errors import ConfigError, GatewayError
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import ClusterTopic, Hubs
from gateway.hub.writes.writer import ProduceResult, RecordWriter
from gateway.kafka.client.cluster import Cluster, ClusterSettings

from .events import Gap
from .options import From, Until, build_start, build_view
from .stream import NOT_RUNNING, Stream

if TYPE_CHECKING:
    from gateway.telemetry.traces import Tracing

__all__ = ["Gateway", "ProduceResult"]

Header: TypeAlias = tuple[str, bytes | str | None]


class Gateway:
    """One connection to Kafka for any number of streams; each partition is read once for all.

        async with Gateway(servers="localhost:9092") as gateway:
            async for record in gateway.subscribe("orders"):
                print(record.key, record.json())

    settings: `Settings`, or the path of a YAML file. Routes are for servers; here any topic can
              be read, with its options of `kafka.topics` if it has some.
    servers:  instead of settings: `host:port`, several, or `embedded`.
    kafka:    with `servers`: other options of the section `kafka`, in its words (`security=...`).
    Raises ConfigError for what cannot be. It may be started again after it was closed.
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
            name: Cluster(ClusterSettings.from_config(kafka)) for name, kafka in clusters.items()
        }
        self.hubs = Hubs(self.clusters, self.settings)
        self.tracing: Tracing | None = None  # while it runs, if it is configured
        if self.settings.telemetry.traces.otlp is not None:
            importlib.import_module("gateway.telemetry.traces")  # now, not when it serves already
        self._writers: dict[str, RecordWriter] = {}

    @property
    def hub(self) -> Hub:
        """Of its cluster; of several, of the first."""
        return next(iter(self.hubs))

    async def start(self) -> None:
        """Begin to reach for Kafka; returns at once. Raises GatewayError if it runs already."""
        if self.hubs.started:
            raise GatewayError("this gateway is started already; close it first")
        if any(kafka.servers == "embedded" for kafka in self.settings.clusters.values()):
            raise GatewayError(
                "servers: embedded is for the command line; within a program, use "
                "`with EmbeddedKafka(...) as kafka:` and servers=kafka.bootstrap"
            )
        self.tracing = _create_tracing(self.settings)
        await self.hubs.start(self.tracing)
        self._writers = {hub.name: hub.publisher.create_writer() for hub in self.hubs}

    async def close(self) -> None:
        """End all streams and close all connections; nothing of it is left."""
        self.hubs.drain("closed")
        await self.hubs.close()
        tracing, self.tracing = self.tracing, None
        if tracing is not None:
            await tracing.close()

    def adopt(self, settings: Settings) -> frozenset[ClusterTopic]:
        """Go by these settings from now on, but for those of the connection to Kafka; the topics
        that are read anew for it, whose clients are to be moved on (`hub.client.CHANGED`)."""
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
        """The records of one or several topics, as an async iterator; see `Stream`.

        start:    `live`: what comes from now on; `earliest`; a datetime, or a timedelta back from
                  now, by the records' timestamps.
        position: a token, such as `record.position`, to go on from; beats `start`.
        until:    `latest`: to the end as it is now; a datetime; or a number of records.
        filters:  as in a configuration: `{"key": "ada"}`, `{"value": {"/amount": {"gte": 10}}}`,
                  or a list of such, of which any may match.
        fields:   of a JSON value that are shown, as JSON pointers; all of it if there are none.
        kafka:    of several clusters the one to read; needed where more than one lists the topics,
                  or none.
        on_gap:   called with each gap that a loop over records meets; else it is logged.
        Raises ValueError for what cannot be read, TokenCorrupt for a position that is none.
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
    ) -> ProduceResult:
        """Write one record; returns where it is once Kafka has it on all replicas in sync.

        value:     text is its UTF-8 bytes, None a tombstone. key: None for none.
        headers:   names and contents; pairs where a name comes more than once.
        partition: by the key if not given, as every Kafka client has it.
        idempotency_key: such as a UUID; the same record with the same key, tried again within
                   ten minutes, by this process or another, is in Kafka once (`repeated`).
        kafka: as of `subscribe`.
        Records of one partition are written in the order of the calls.
        Raises UnknownTopic, AccessDenied, AuthenticationFailed; BrokerUnavailable (with `timeout`
        it may yet be written: repeat it with its idempotency key); KeyReused; RequestError for
        what Kafka does not take; GatewayError if this gateway does not run.
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
        """Raises ValueError where it is not clear which."""
        names = list(self.settings.clusters)
        if kafka is not None:
            if kafka not in names or not kafka:
                known = [name for name in names if name]
                hint = suggest(kafka, known, "leave it out")
                raise ValueError(f"there is no cluster {kafka!r}; {hint}")
            return self.hubs.get_hub(kafka)
        found = self.hubs.find_hubs(topics)
        if len(found) != 1:
            where = "several clusters list" if found else "no cluster lists"
            what = f"{where} {', '.join(topics)}; say which, by kafka="
            raise ValueError(f"{what}{' or '.join(map(repr, names))}")
        return found[0]


def _create_tracing(settings: Settings) -> Tracing | None:
    """Imports OpenTelemetry only where there is a use for it."""
    traces, headers = settings.telemetry.traces, settings.telemetry.headers
    if traces.otlp is None:
        return None
    from gateway.telemetry.otlp import build_resource
    from gateway.telemetry.traces import Tracing

    return Tracing(
        traces.otlp,
        share=traces.sample,
        headers={name: secret.get_secret_value() for name, secret in headers.items()},
        resource=build_resource(settings.name, version("gateway")),
    )


def _encode_text(text: bytes | str | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _build_settings(servers: str | Iterable[str], kafka: dict[str, Any]) -> Settings:
    given: Any = list(servers) if not isinstance(servers, str) else servers
    if isinstance(given, str) and given != "embedded":
        given = [each.strip() for each in given.split(",")]
    try:
        return Settings.model_validate({"kafka": {"servers": given, **kafka}})
    except ValidationError as error:
        problems = [f"{format_loc(each['loc'])}: {each['msg']}" for each in error.errors()]
        raise ConfigError(problems) from None
