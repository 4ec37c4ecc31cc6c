"""The reactive group of the bench: the sidecar's part of what the gateways do.

All workers are its members, and they call one back end. Pure, but for `ReactiveGroup`. What the
documentation promises, and what is checked here of what the back end accepted, per partition:

- every committed record that Kafka still has comes at least once, none of an aborted transaction,
  none that was never written, and each with its own key and value;
- records come for the first time in the order of the log, and none is skipped;
- a record comes again only because its batch had no answer, or was not committed yet when its
  member lost the partition: two batches at most. So nothing comes again from further back than
  that;
- once all faults are over and all has come, what is written then does not come again within the
  timeout of the back end: it was answered, and nobody lost a partition;
- timestamp and headers are those of the record.

Since the back end never answers that a record was not processed, there are no dead letters.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from support.backend import FakeBackend
from support.reactive import BACKEND_TIMEOUT_S, build_settings
from support.stream_check import AckedRecord, Finding, FindingKind, PartitionTruth

from gateway.core.log.record import TopicPartition

from .judge import GROUP, ClientFinding
from .truth import Truth
from .views import LEDGER, SOLO, TRIMMED, UNCLEAN, VOLATILE, describe_other_metadata

GROUP_NAME = "bench"
GROUP_TOPICS = (LEDGER, SOLO, TRIMMED, VOLATILE, UNCLEAN)
PROTOCOLS = ("consumer", "classic")
BATCH_RECORDS = 20
MAX_RECORDS_AGAIN = 2 * BATCH_RECORDS
DEAD_LETTER_SUFFIX = ".dlq"
MAX_FINDINGS = 50


class Delivery(NamedTuple):
    """A record that the back end accepted.

    Attributes:
        at: When, by `time.monotonic`.
        record: Its place, key and value.
        other_metadata: How its timestamp and headers differ from those it was written with.
    """

    at: float
    record: AckedRecord
    other_metadata: str = ""


@dataclass
class ReactiveGroup:
    """The group and its back end.

    Attributes:
        backend: What is called.
        protocol: That of the group: consumer or classic.
    """

    backend: FakeBackend
    protocol: str

    def build_section(self) -> dict[str, Any]:
        """Build the section `sidecar` of the gateways."""
        group = build_settings(
            self.backend,
            "",
            group=GROUP_NAME,
            topics=list(GROUP_TOPICS),
            valueFormat="string",
            maxPollRecords=BATCH_RECORDS,
            parallelism=2,
            groupProtocol=self.protocol,
            sessionTimeout="6s",
        )
        return {"reactive": {"groups": group}}

    def list_deliveries(self) -> list[Delivery]:
        """Return what the back end accepted by now, in its order."""
        clock_difference_s = time.time() - time.monotonic()
        return [
            parse_delivery(record, call["at"] - clock_difference_s)
            for call in self.backend.calls
            for record, done in zip(call["records"], call["processed"] or (), strict=False)
            if done
        ]


def parse_delivery(data: Mapping[str, Any], at: float) -> Delivery:
    """Return a record as the back end got it, at a time of `time.monotonic`."""
    record, headers = _parse_record(data), list(data["headers"].items())
    other = describe_other_metadata(record.value or b"", data["timestamp"], headers)
    return Delivery(at, record, other)


def _parse_record(data: Mapping[str, Any]) -> AckedRecord:
    tp = TopicPartition(data["topic"], data["partition"])
    key, value = data["key"], data["value"]
    return AckedRecord(
        tp,
        data["offset"],
        None if key is None else key.encode(),
        None if value is None else value.encode(),
    )


def list_lacking(deliveries: Iterable[Delivery], truth: Truth) -> list[AckedRecord]:
    """Return the records that Kafka has and that the back end has yet to get."""
    accepted = {each.record for each in deliveries}
    return [
        record
        for record in truth.read_records
        if record.tp.topic in GROUP_TOPICS
        and record.offset >= truth.log_starts.get(record.tp, 0)
        and record not in accepted
    ]


def judge_group(
    deliveries: Sequence[Delivery], truth: Truth, calm_at: float = math.inf
) -> list[ClientFinding]:
    """Return what is wrong with what the back end accepted, which is all that it gets.

    Args:
        deliveries: What it accepted.
        truth: What Kafka has and had.
        calm_at: When all faults were over and all had come, by `time.monotonic`.
    """
    by_partition: dict[TopicPartition, list[AckedRecord]] = {}
    for each in deliveries:
        by_partition.setdefault(each.record.tp, []).append(each.record)
    found = [
        (record.tp, Finding(FindingKind.LOST, record.offset, f"never came: {record.value!r:.80}"))
        for record in list_lacking(deliveries, truth)
    ]
    for tp, records in by_partition.items():
        if tp in truth.truths:
            check = _PartitionCheck(truth.truths[tp])
            found += [(tp, finding) for finding in check.list_findings(records)]
        else:
            text = f"{len(records)} records of a partition that it does not read"
            found.append((tp, Finding(FindingKind.OUTSIDE, records[0].offset, text)))
    found += [
        (each.record.tp, Finding(FindingKind.ALTERED, each.record.offset, each.other_metadata))
        for each in deliveries
        if each.other_metadata
    ]
    found += _list_again_in_calm(deliveries, calm_at)
    return [
        ClientFinding(GROUP, GROUP_NAME, "", each.kind, tp, each.offset, each.text)
        for tp, each in found[:MAX_FINDINGS]
    ]


def count_again(deliveries: Sequence[Delivery]) -> int:
    """Return how many times a record came another time."""
    return len(deliveries) - len({each.record for each in deliveries})


def _list_again_in_calm(
    deliveries: Iterable[Delivery], calm_at: float
) -> Iterator[tuple[TopicPartition, Finding]]:
    """Find what came for the first time when all was calm, and again soon after."""
    first_at: dict[AckedRecord, float] = {}
    for at, record, _ in deliveries:
        after_s = at - first_at.setdefault(record, at)
        if first_at[record] > calm_at and 0 < after_s < BACKEND_TIMEOUT_S:
            text = f"again after {after_s:.2f} s, although it was answered and nothing failed"
            yield record.tp, Finding(FindingKind.DUPLICATE, record.offset, text)


@dataclass
class _PartitionCheck:
    """Walks what came of one partition."""

    truth: PartitionTruth
    _first_places: list[tuple[int, int]] = field(default_factory=list)  # life of the log, offset
    _first_indexes: dict[AckedRecord, int] = field(default_factory=dict)  # in these

    def list_findings(self, records: Iterable[AckedRecord]) -> Iterator[Finding]:
        """Return what is wrong with the records of a partition, in the order they came."""
        lives = {
            record: life
            for life, log in reversed(list(enumerate(self.truth.logs)))
            for record in log.values()
        }
        values = {record.value for record in lives}
        for record in records:
            text = f"{record.key!r}: {record.value!r:.80}"
            if record in lives:
                yield from self._check_order(record, lives[record])
            elif record.value in self.truth.aborted_values:
                yield Finding(FindingKind.ABORTED, record.offset, f"aborted: {text}")
            elif record.value in values:
                yield Finding(FindingKind.ALTERED, record.offset, f"not as written: {text}")
            elif record.value not in self.truth.uncertain_values:
                yield Finding(FindingKind.PHANTOM, record.offset, f"never acknowledged: {text}")

    def _check_order(self, record: AckedRecord, life: int) -> Iterator[Finding]:
        place, index = (life, record.offset), self._first_indexes.get(record)
        if index is not None:
            behind = len(self._first_places) - index
            if behind > MAX_RECORDS_AGAIN:
                text = f"again, {behind} records later; {MAX_RECORDS_AGAIN} are two batches"
                yield Finding(FindingKind.DUPLICATE, record.offset, text)
            return
        if self._first_places and place < self._first_places[-1]:
            text = f"for the first time after {self._first_places[-1][1]}"
            yield Finding(FindingKind.REORDERED, record.offset, text)
        self._first_indexes[record] = len(self._first_places)
        self._first_places.append(place)
