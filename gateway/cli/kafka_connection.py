"""Find and connect to the Kafka of a command, which ends with an error if no broker answers."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import typer

from gateway.errors import BrokerUnavailable, ConfigError, GatewayError, KafkaError

from .options import find_config_file, is_given, split_list

if TYPE_CHECKING:
    from gateway.config import Kafka
    from gateway.kafka.client.cluster import Cluster
    from gateway.kafka.client.outages import OptionNames

CONNECT_TIMEOUT_S = 15.0  # seconds until a broker must have answered


def require_topic_name(name: str) -> str:
    from pydantic import TypeAdapter, ValidationError

    from gateway.config.types.fields import TopicName

    try:
        return TypeAdapter(TopicName).validate_python(name)
    except ValidationError as exc:
        raise typer.BadParameter(exc.errors()[0]["msg"], param_hint="TOPIC") from None


@dataclass(frozen=True)
class KafkaSource:
    """The origin of a command's Kafka settings; `servers` override those of the file."""

    file: Path | None
    servers: Sequence[str] | None

    @classmethod
    def find(cls, ctx: typer.Context, servers: str, config: Path | None) -> Self:
        """Return the source by the command line, the environment or a configuration, in this order.

        --servers alone needs no configuration. The variable of the servers overrides the servers of
        a configuration, and leaves its TLS and SASL as they are.
        """
        given = split_list(servers)
        if config is None and is_given(ctx, "servers"):
            return cls(None, given)
        file = find_config_file(config)
        is_overridden = file is None or is_given(ctx, "servers", in_environment=True)
        return cls(file, given if is_overridden else None)

    def load(self, topics: Sequence[str], name: str) -> Kafka:
        """Return the settings of the cluster of these topics, for a command with this name."""
        if self.file is None:
            return _build_kafka(self.servers or (), name)
        _, kafka = _find_cluster(self.file, topics)
        if self.servers is not None:
            return kafka.model_copy(update={"servers": _build_kafka(self.servers, name).servers})
        if kafka.servers == "embedded":
            raise GatewayError(
                f"the Kafka of {self.file} is embedded in the gateway; give --servers"
            )
        return kafka

    def name_options(self, topics: Sequence[str]) -> OptionNames:
        """Return the names of options for messages on the cluster that `load` returns."""
        from gateway.kafka.client.outages import OptionNames

        servers = "" if self.servers is None else "--servers"
        if self.file is None:
            return OptionNames(servers=servers, location=" in a file for --config")
        name, _ = _find_cluster(self.file, topics)
        return OptionNames(f"kafka.{name}" if name else "kafka", servers)


def _build_kafka(servers: Sequence[str], name: str) -> Kafka:
    """Return the settings of a cluster without TLS and SASL, for a command with this name."""
    from gateway.config import loads

    try:
        settings = loads(json.dumps({"name": name, "kafka": {"servers": list(servers)}}))
    except ConfigError as exc:
        reason = exc.problems[0].split(": ", 1)[-1]
        raise GatewayError(f"--servers {','.join(servers)}: {reason}") from None
    return settings.clusters[""]


def _find_cluster(file: Path, topics: Sequence[str]) -> tuple[str, Kafka]:
    """Return the name and settings of the cluster that lists these topics, or of the only one."""
    from gateway.config import load

    settings = load(file)
    names = settings.find_cluster_names(topics)
    if len(names) != 1 and not topics:
        names_of_file = ", ".join(settings.clusters)
        raise GatewayError(f"{file} has several clusters: {names_of_file}; give --servers")
    if len(names) != 1:
        which = " and ".join(names) if names else f"none of {', '.join(settings.clusters)}"
        raise GatewayError(f"{', '.join(topics)}: {which} of {file} lists it; give --servers")
    return names[0], settings.clusters[names[0]]


@asynccontextmanager
async def open_cluster(
    kafka: Kafka, name: str = "", names: OptionNames | None = None
) -> AsyncIterator[Cluster]:
    """Connect to a cluster, which must not be embedded; `names` are its options in messages."""
    from gateway.kafka.client.cluster import Cluster, ClusterSettings

    # Failures are reported once, as errors.
    for logger in ("aiokafka", "gateway.kafka"):
        logging.getLogger(logger).addHandler(logging.NullHandler())
    settings = ClusterSettings.from_config(kafka, name=name, names=names)
    async with Cluster(settings) as cluster:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await cluster.metadata.refresh("a command begins")
        except TimeoutError:
            servers = ", ".join(settings.servers)
            option = "the servers" if names is None else names.name_servers()
            raise BrokerUnavailable(f"no broker of {servers} answers; check {option}") from None
        yield cluster


@asynccontextmanager
async def open_source(
    source: KafkaSource, topics: Sequence[str], command: str
) -> AsyncIterator[Cluster]:
    kafka, names = source.load(topics, command), source.name_options(topics)
    async with open_cluster(kafka, names=names) as cluster:
        yield cluster


async def find_connection_error(
    source: KafkaSource, topics: Sequence[str], command: str
) -> KafkaError | None:
    """Return why no broker can be connected to, for clients that do not say why they failed."""
    try:
        async with open_source(source, topics, command):
            return None
    except KafkaError as exc:
        return exc
