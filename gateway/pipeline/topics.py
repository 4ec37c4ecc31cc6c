"""Topics of jobs: which there are, and those of outputs made where they are missing."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from gateway.config import Kafka
from gateway.errors import PipelineUnavailable
from gateway.pipeline.run.failures import build_kafka_error
from gateway.pipeline.spark.client_config import build_client_config, format_bootstrap_servers

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 10.0  # s


class TopicDescription(NamedTuple):
    """A topic. id: another one where it is deleted and made anew."""

    name: str
    id: str
    partitions: int


class TopicMissing(PipelineUnavailable):
    """A topic that a job reads does not exist, or not yet."""


DEFAULT_MAX_MESSAGE_BYTES = 1_048_588  # Kafka's default


def list_topics(kafka: Kafka, timeout_s: float = REQUEST_TIMEOUT_S) -> dict[str, int]:
    """The topics of a cluster and how many partitions each has. within: seconds. Raises
    PipelineError: Kafka does not answer."""
    from confluent_kafka import KafkaException

    try:
        told = create_admin_client(build_client_config(kafka)).list_topics(timeout=timeout_s)
    except KafkaException as error:
        raise build_kafka_error(
            f"Kafka at {format_bootstrap_servers(kafka)} does not answer", error
        ) from error
    return {name: len(each.partitions) for name, each in told.topics.items() if not each.error}


def ensure_topic(kafka: Kafka, name: str, partitions: int | None, known: Collection[str]) -> None:
    """Make a topic, unless it is known. Raises PipelineError."""
    if name not in known:
        create_topic(build_client_config(kafka), name, partitions)


def create_topic(options: Mapping[str, Any], name: str, partitions: int | None = None) -> None:
    """Make a topic, unless it is there.

    Args:
        options: librdkafka's properties of the cluster.
        name: Of the topic.
        partitions: None for as many as the cluster's default.

    Raises:
        PipelineUnavailable: It cannot be made now, as where a broker is restarting.
        PipelineError: It cannot be made.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # it is there

    wanted = NewTopic(name, num_partitions=partitions or -1, replication_factor=-1)
    admin = create_admin_client(options)  # held: one that is let go ends what it was asked
    try:
        admin.create_topics([wanted])[name].result(REQUEST_TIMEOUT_S)
        log.info("topic %s is made", name)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise build_kafka_error(f"topic {name} cannot be made", error) from error


def describe_topic(options: Mapping[str, Any], name: str) -> TopicDescription:
    """Return a topic as it is now.

    Raises:
        PipelineError: As of `create`.
    """
    admin = create_admin_client(options)  # held, as in `create`
    return await_topic(request_topic(admin, name), name)


def request_topic(admin: Any, name: str) -> Future[Any]:
    """Ask Kafka for a topic.

    Args:
        admin: As of `connect`; to be held until the answer is there.
        name: Of the topic.

    Returns:
        What `await_topic` takes.
    """
    from confluent_kafka import TopicCollection

    asked = admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_TIMEOUT_S)
    answer: Future[Any] = asked[name]
    return answer


def await_topic(answer: Future[Any], name: str) -> TopicDescription:
    """Return a topic once Kafka has answered.

    Raises:
        TopicMissing: There is none of this name.
        PipelineError: As of `create`.
    """
    from confluent_kafka import KafkaError, KafkaException

    try:
        found = answer.result(REQUEST_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicMissing(f"topic {name} does not exist") from error
        raise build_kafka_error(f"topic {name} cannot be asked for", error) from error
    return TopicDescription(name, str(found.topic_id), len(found.partitions))


def fetch_max_message_bytes(options: Mapping[str, Any], name: str) -> int:
    """Return the size of the largest batch that a topic takes; Kafka's default where it is not
    told.

    Raises:
        PipelineError: As of `create`.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

    admin = create_admin_client(options)
    asked = ConfigResource(ResourceType.TOPIC, name)
    try:
        found = admin.describe_configs([asked], request_timeout=REQUEST_TIMEOUT_S)[asked].result(
            REQUEST_TIMEOUT_S
        )
        return int(found["max.message.bytes"].value)
    except KafkaException as error:
        refused = build_kafka_error(f"the settings of topic {name} cannot be read", error)
        if isinstance(refused, PipelineUnavailable):
            raise refused from error
        return DEFAULT_MAX_MESSAGE_BYTES


def create_admin_client(options: Mapping[str, Any]) -> Any:
    """Return an AdminClient of librdkafka's properties."""
    from confluent_kafka.admin import AdminClient

    quiet = {"log_level": 2, "logger": logging.getLogger(f"{__name__}.librdkafka")}
    merged: dict[str, Any] = {**options, **quiet}
    return AdminClient(merged)
