"""List, describe and create the topics of jobs.

All functions wait for Kafka, and none of them keeps a connection. They raise PipelineUnavailable
if Kafka does not answer now, and another PipelineError if it refuses.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple

from gateway.config import Kafka
from gateway.errors import PipelineUnavailable
from gateway.pipeline.run.failures import build_kafka_error
from gateway.pipeline.spark.client_config import build_client_config, format_bootstrap_servers

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 10.0


class TopicDescription(NamedTuple):
    """A topic; its `id` (KIP-516) changes if it is deleted and recreated."""

    name: str
    id: str
    partitions: int = 0


NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What brokers without topic ids (before Kafka 2.8, Redpanda) answer: a UUID of zeros."""


def is_other_topic(old_id: str, new_id: str) -> bool:
    return old_id != new_id and NO_TOPIC_ID not in (old_id, new_id)


class TopicMissing(PipelineUnavailable):
    """A topic that a job reads does not exist (yet)."""


DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default for `max.message.bytes`."""


def list_topics(kafka: Kafka, timeout_s: float = REQUEST_TIMEOUT_S) -> dict[str, int]:
    """Return the number of partitions of each topic of a cluster."""
    from confluent_kafka import KafkaException

    try:
        metadata = create_admin_client(build_client_config(kafka)).list_topics(timeout=timeout_s)
    except KafkaException as error:
        raise build_kafka_error(
            f"Kafka at {format_bootstrap_servers(kafka)} does not answer", error
        ) from error
    return {
        name: len(topic.partitions) for name, topic in metadata.topics.items() if not topic.error
    }


def ensure_topic(kafka: Kafka, name: str, partitions: int | None, known: Collection[str]) -> None:
    """Create a topic, unless `known`, the names of existing topics, has it."""
    if name not in known:
        create_topic(build_client_config(kafka), name, partitions)


def create_topic(options: Mapping[str, Any], name: str, partitions: int | None = None) -> None:
    """Create a topic, unless it exists; the default number of partitions is the cluster's."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # the types lack it

    new_topic = NewTopic(name, num_partitions=partitions or -1, replication_factor=-1)
    # A variable, because a client without references is closed and drops its requests.
    admin = create_admin_client(options)
    # First, because Kafka refuses a user who may not create topics even if the topic exists.
    with suppress(TopicMissing):
        await_topic(request_topic(admin, name), name)
        return
    try:
        admin.create_topics([new_topic])[name].result(REQUEST_TIMEOUT_S)
        log.info("topic %s created", name)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise build_kafka_error(f"topic {name} cannot be created", error) from error


def describe_topic(options: Mapping[str, Any], name: str) -> TopicDescription:
    """Return the description of a topic, or raise TopicMissing."""
    admin = create_admin_client(options)  # a variable, as in `create_topic`
    return await_topic(request_topic(admin, name), name)


def request_topic(admin: Any, name: str) -> Future[Any]:
    """Send a request for the description of a topic; `await_topic` waits for the answer.

    The caller must keep a reference to `admin` until the answer has arrived.
    """
    from confluent_kafka import TopicCollection

    futures = admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_TIMEOUT_S)
    answer: Future[Any] = futures[name]
    return answer


def await_topic(answer: Future[Any], name: str) -> TopicDescription:
    """Wait for the answer to `request_topic`; raise TopicMissing if there is no topic."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        description = answer.result(REQUEST_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicMissing(f"topic {name} does not exist") from error
        raise build_kafka_error(f"topic {name} cannot be described", error) from error
    return TopicDescription(name, str(description.topic_id), len(description.partitions))


def fetch_max_message_bytes(options: Mapping[str, Any], name: str) -> int:
    """Return a topic's `max.message.bytes`, or Kafka's default if the user may not read it."""
    return int(fetch_config(options, name, "max.message.bytes") or DEFAULT_MAX_MESSAGE_BYTES)


def fetch_config(options: Mapping[str, Any], name: str, key: str) -> str | None:
    """Return a setting of a topic, or None if the user may not read it."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

    admin = create_admin_client(options)
    resource = ConfigResource(ResourceType.TOPIC, name)
    try:
        futures = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
        return str(futures[resource].result(REQUEST_TIMEOUT_S)[key].value)
    except KafkaException as error:
        problem = build_kafka_error(f"the settings of topic {name} cannot be read", error)
        if isinstance(problem, PipelineUnavailable):
            raise problem from error
        return None


def create_admin_client(options: Mapping[str, Any]) -> Any:
    """Return an AdminClient of librdkafka that logs by Python's logging."""
    from confluent_kafka.admin import AdminClient

    merged: dict[str, Any] = {**options, "logger": logging.getLogger(f"{__name__}.librdkafka")}
    return AdminClient(merged)
