"""Connect to a Kafka for one command, which ends with an error if no broker answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import typer

from gateway.errors import BrokerUnavailable, KafkaError

if TYPE_CHECKING:
    from gateway.config import Kafka
    from gateway.kafka.client.cluster import Cluster
    from gateway.kafka.client.outages import OptionNames

    from .options import KafkaSource

CONNECT_TIMEOUT_S = 15.0  # seconds until a broker must have answered


def require_topic_name(name: str) -> str:
    from pydantic import TypeAdapter, ValidationError

    from gateway.config.types.fields import TopicName

    try:
        return TypeAdapter(TopicName).validate_python(name)
    except ValidationError as exc:
        raise typer.BadParameter(exc.errors()[0]["msg"], param_hint="TOPIC") from None


@asynccontextmanager
async def open_cluster(
    kafka: Kafka, name: str = "", names: OptionNames | None = None
) -> AsyncIterator[Cluster]:
    """Connect to a cluster, of which a broker must answer, and close it after the block.

    Args:
        kafka: Its settings; its servers must not be embedded.
        names: The names of its options in messages; None for those of its section.
    """
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
    """Connect to the cluster of a command's options, and name these in messages."""
    async with open_cluster(
        source.load(topics, command), names=name_options(source, topics)
    ) as cluster:
        yield cluster


def name_options(source: KafkaSource, topics: Sequence[str]) -> OptionNames:
    """Return the names of options for messages on the cluster that `KafkaSource.load` returns."""
    from gateway.kafka.client.outages import OptionNames

    servers = "" if source.servers is None else "--servers"
    if source.file is None:
        return OptionNames(servers=servers, location=" in a file for --config")
    from gateway.config import load

    (name,) = load(source.file).find_cluster_names(topics)
    return OptionNames(f"kafka.{name}" if name else "kafka", servers)


async def find_connection_error(
    source: KafkaSource, topics: Sequence[str], command: str
) -> KafkaError | None:
    """Return why no broker can be connected to, for clients that do not say why they failed."""
    try:
        async with open_source(source, topics, command):
            return None
    except KafkaError as exc:
        return exc
