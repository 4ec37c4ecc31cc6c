"""Topics of jobs: which there are, and those of outputs made where they are missing."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from gateway.config import Kafka
from gateway.errors import PipelineUnavailable
from gateway.pipeline.run.failures import of_kafka
from gateway.pipeline.spark.connect import client, servers

log = logging.getLogger(__name__)

PATIENCE = 10.0  # s


class Topic(NamedTuple):
    """A topic. id: another one where it is deleted and made anew."""

    name: str
    id: str
    partitions: int


class TopicMissing(PipelineUnavailable):
    """A topic that a job reads does not exist, or not yet."""


MAX_MESSAGE_BYTES = 1_048_588  # Kafka's default


def present(kafka: Kafka, within: float = PATIENCE) -> dict[str, int]:
    """The topics of a cluster and how many partitions each has. within: seconds. Raises
    PipelineError: Kafka does not answer."""
    from confluent_kafka import KafkaException

    try:
        told = connect(client(kafka)).list_topics(timeout=within)
    except KafkaException as error:
        raise of_kafka(f"Kafka at {servers(kafka)} does not answer", error) from error
    return {name: len(each.partitions) for name, each in told.topics.items() if not each.error}


def ensure(kafka: Kafka, name: str, partitions: int | None, known: Collection[str]) -> None:
    """Make a topic, unless it is known. Raises PipelineError."""
    if name not in known:
        create(client(kafka), name, partitions)


def create(options: Mapping[str, Any], name: str, partitions: int | None = None) -> None:
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
    admin = connect(options)  # held: one that is let go ends what it was asked
    try:
        admin.create_topics([wanted])[name].result(PATIENCE)
        log.info("topic %s is made", name)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise of_kafka(f"topic {name} cannot be made", error) from error


def describe(options: Mapping[str, Any], name: str) -> Topic:
    """Return a topic as it is now.

    Raises:
        PipelineError: As of `create`.
    """
    admin = connect(options)  # held, as in `create`
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

    asked = admin.describe_topics(TopicCollection([name]), request_timeout=PATIENCE)
    answer: Future[Any] = asked[name]
    return answer


def await_topic(answer: Future[Any], name: str) -> Topic:
    """Return a topic once Kafka has answered.

    Raises:
        TopicMissing: There is none of this name.
        PipelineError: As of `create`.
    """
    from confluent_kafka import KafkaError, KafkaException

    try:
        found = answer.result(PATIENCE)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicMissing(f"topic {name} does not exist") from error
        raise of_kafka(f"topic {name} cannot be asked for", error) from error
    return Topic(name, str(found.topic_id), len(found.partitions))


def max_message_bytes(options: Mapping[str, Any], name: str) -> int:
    """Return the size of the largest batch that a topic takes; Kafka's default where it is not
    told.

    Raises:
        PipelineError: As of `create`.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

    admin = connect(options)
    asked = ConfigResource(ResourceType.TOPIC, name)
    try:
        found = admin.describe_configs([asked], request_timeout=PATIENCE)[asked].result(PATIENCE)
        return int(found["max.message.bytes"].value)
    except KafkaException as error:
        refused = of_kafka(f"the settings of topic {name} cannot be read", error)
        if isinstance(refused, PipelineUnavailable):
            raise refused from error
        return MAX_MESSAGE_BYTES


def connect(options: Mapping[str, Any]) -> Any:
    """Return an AdminClient of librdkafka's properties."""
    from confluent_kafka.admin import AdminClient

    quiet = {"log_level": 2, "logger": logging.getLogger(f"{__name__}.librdkafka")}
    merged: dict[str, Any] = {**options, **quiet}
    return AdminClient(merged)
