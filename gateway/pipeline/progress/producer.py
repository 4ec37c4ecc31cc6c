"""Progress as records of a topic, for streams: the key is the job's name, the value JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

_MAX_QUEUED_RECORDS = 5_000  # records, of about 4 KB
_DELIVERY_TIMEOUT_MS = 120_000  # ms


class ProgressProducer:
    """Never waits: what Kafka does not take is told to `lost`, with the job's name."""

    def __init__(
        self, topic: str, client_config: Mapping[str, Any], on_lost: Callable[[str], None]
    ) -> None:
        self.topic = topic
        self._on_lost = on_lost
        self._producer = Producer(
            {
                **client_config,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": _DELIVERY_TIMEOUT_MS,
                "queue.buffering.max.messages": _MAX_QUEUED_RECORDS,
                "log_level": 2,
            }
        )

    def send_record(self, job: str, record: Mapping[str, Any]) -> None:
        value = json.dumps({"job": job, **record}, default=str, separators=(",", ":"))
        try:
            self._producer.produce(self.topic, value, job, on_delivery=self._on_delivery)
        except (BufferError, KafkaException):
            self._on_lost(job)
        self._producer.poll(0)

    def close(self, timeout_s: float) -> None:
        """Seconds for what is on its way."""
        self._producer.flush(timeout_s)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self._on_lost(message.key().decode())
