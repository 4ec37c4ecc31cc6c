"""Write the progress of jobs to a topic, so that a route can stream it to browsers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

_MAX_QUEUED_RECORDS = 5_000  # of about 4 KB each
_DELIVERY_TIMEOUT_MS = 120_000


class ProgressProducer:
    """A producer of progress records, which never waits for Kafka.

    The key of a record is the name of its job, the value is JSON. `ProgressReporter` owns it.
    """

    def __init__(
        self, topic: str, client_config: Mapping[str, Any], on_lost: Callable[[str], None]
    ) -> None:
        """Create the client; it connects in the background."""
        self.topic = topic
        self._on_lost = on_lost
        self._producer = Producer(
            {
                **client_config,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": _DELIVERY_TIMEOUT_MS,
                "queue.buffering.max.messages": _MAX_QUEUED_RECORDS,
            }
        )

    def send_record(self, job: str, record: Mapping[str, Any]) -> None:
        value = json.dumps({"job": job, **record}, default=str, separators=(",", ":"))
        try:
            self._producer.produce(self.topic, value, job, on_delivery=self._on_delivery)
        except (BufferError, KafkaException):
            self._on_lost(job)
        self._producer.poll(0)  # calls `_on_delivery` for earlier records

    def close(self, timeout_s: float) -> None:
        self._producer.flush(timeout_s)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self._on_lost(message.key().decode())
