"""Topics of jobs: which there are, and those of outputs made where they are missing."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from gateway.config import Kafka
from gateway.errors import PipelineError

from .connect import client, servers

log = logging.getLogger(__name__)

PATIENCE = 10.0  # s


def present(kafka: Kafka, within: float = PATIENCE) -> dict[str, int]:
    """The topics of a cluster and how many partitions each has. within: seconds. Raises
    PipelineError: Kafka does not answer."""
    from confluent_kafka import KafkaException

    try:
        told = _admin(kafka).list_topics(timeout=within)
    except KafkaException as error:
        why = error.args[0].str()
        raise PipelineError(f"Kafka at {servers(kafka)} does not answer: {why}") from error
    return {name: len(each.partitions) for name, each in told.topics.items() if not each.error}


def ensure(kafka: Kafka, name: str, partitions: int | None, known: Collection[str]) -> None:
    """Make a topic, unless it is known. Raises PipelineError."""
    if name in known:
        return
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # it is there

    wanted = NewTopic(name, num_partitions=partitions or -1, replication_factor=-1)
    admin = _admin(kafka)  # held: one that is let go ends what it was asked
    try:
        admin.create_topics([wanted])[name].result(PATIENCE)
        log.info("topic %s is made", name)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            why = error.args[0].str()
            raise PipelineError(f"topic {name} cannot be made: {why}; make it yourself") from error


def _admin(kafka: Kafka) -> Any:
    from confluent_kafka.admin import AdminClient

    quiet = {"log_level": 2, "logger": logging.getLogger(f"{__name__}.librdkafka")}
    options: dict[str, Any] = {**client(kafka), **quiet}
    return AdminClient(options)
