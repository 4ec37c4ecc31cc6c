"""Progress as records of a topic, for streams: the key is the job's name, the value JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

_WAITS = 5_000  # records, of about 4 KB
_GIVEN_UP = 120_000  # ms


class Topic:
    """Never waits: what Kafka does not take is told to `lost`, with the job's name."""

    def __init__(self, name: str, client: Mapping[str, Any], lost: Callable[[str], None]) -> None:
        self.name = name
        self._lost = lost
        self._producer = Producer(
            {
                **client,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": _GIVEN_UP,
                "queue.buffering.max.messages": _WAITS,
                "log_level": 2,
            }
        )

    def tell(self, job: str, record: Mapping[str, Any]) -> None:
        value = json.dumps({"job": job, **record}, default=str, separators=(",", ":"))
        try:
            self._producer.produce(self.name, value, job, on_delivery=self._delivered)
        except (BufferError, KafkaException):
            self._lost(job)
        self._producer.poll(0)

    def close(self, within: float) -> None:
        """Seconds for what is on its way."""
        self._producer.flush(within)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._lost(message.key().decode())
