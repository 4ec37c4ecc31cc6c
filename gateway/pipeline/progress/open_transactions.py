"""Report transactions that stay open in the inputs of a job, behind which it reads nothing.

Spark reads committed records only, and takes the last stable offset for the end of a topic. So its
own progress shows neither the transaction nor the records behind it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gateway.telemetry import catalog

from . import alerts, counts

ALERT_NAME = "open-transaction"
ALERT_AFTER_S = 60.0  # Kafka's default for `transaction.timeout.ms`


class LogEnd(NamedTuple):
    """Where a partition ends for readers of committed records, and for others."""

    last_stable_offset: int
    high_watermark: int


class OpenTransactions:
    """The open transactions of one run of a query. The runner updates it every few seconds."""

    def __init__(self, job: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._clock = clock
        self._first_seen: dict[tuple[str, int, int], float] = {}  # by topic, partition and offset

    def update(self, ends: Mapping[tuple[str, int], LogEnd]) -> None:
        now = self._clock()
        behind = Counter({topic: 0 for topic, _ in ends})
        first_seen: dict[tuple[str, int, int], float] = {}
        for (topic, partition), end in ends.items():
            behind[topic] += max(0, end.high_watermark - end.last_stable_offset)
            if end.last_stable_offset < end.high_watermark:
                transaction = topic, partition, end.last_stable_offset
                first_seen[transaction] = self._first_seen.get(transaction, now)
        self._first_seen = first_seen
        # Beside those that the latest batch has left.
        for topic, count in behind.items():
            counts.set_gauge(catalog.PIPELINE_BEHIND_OFFSETS, count, self._job, topic)
        lasting = [each for each, at in first_seen.items() if now - at >= ALERT_AFTER_S]
        if lasting:
            places = (
                f"topic {t} partition {p} offset {offset}" for t, p, offset in sorted(lasting)
            )
            alerts.raise_alert(
                self._job,
                ALERT_NAME,
                "records behind an open transaction are not read: "
                f"{', '.join(places)}; end its producer, or abort it with kafka-transactions.sh",
            )
        else:
            self.close()

    def close(self) -> None:
        alerts.clear_alert(self._job, ALERT_NAME)
