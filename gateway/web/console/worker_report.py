"""Report to the console what one worker knows: partitions, incidents, counters, history.

Every worker answers `BUS_TOPIC` with what the asking worker does not know yet, so that nothing is
sent twice: with 2,000 partitions at rest a report has 400 bytes.

The latest incidents are kept where an operator's page can show them: lost and recovered partitions,
gaps, warnings, errors. The gateway logs the same lines; the oldest are dropped here.

What the charts show is kept for ten minutes: each worker samples its counters in every interval of
5 s, also while nobody watches, so whoever opens the console because of an alert sees how it began.
Intervals are numbered since 1970, and the samples of all workers add up. A worker keeps 120 of
them, 45 KB.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import Any, NamedTuple

import psutil

from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import Hubs
from gateway.telemetry.counts import LATENCY_BUCKETS_S
from gateway.telemetry.logs import escape_line, redact_text
from gateway.telemetry.process import LoopLag
from gateway.web.workers.bus import Bus

from .partition_watch import (
    TROUBLED_STATES,
    PartitionState,
    PartitionWatch,
    Transition,
)

SAMPLE_S = 5.0
MAX_SAMPLES = 120
QUANTILES = (0.5, 0.99)


class Counters(NamedTuple):
    """The counters of one worker at one moment; histograms by `LATENCY_BUCKETS_S`."""

    clock: float
    delivered: int
    sent_bytes: int
    fetched: int
    latency: Sequence[int]
    loop_lag: Sequence[int]


class Rates(NamedTuple):
    """The changes of `Counters` between two moments: per second, and the histograms in total."""

    delivered: float
    sent_bytes: float
    fetched: float
    latency: Sequence[int]
    loop_lag: Sequence[int]


def compute_rates(before: Counters, after: Counters) -> Rates | None:
    """Return the rates between two moments of one worker; None if no time has passed."""
    seconds = after.clock - before.clock
    if seconds <= 0:
        return None

    def divide(old: int, new: int) -> float:
        # Below 0 where a counter began anew.
        return max(0.0, (new - old) / seconds)

    return Rates(
        divide(before.delivered, after.delivered),
        divide(before.sent_bytes, after.sent_bytes),
        divide(before.fetched, after.fetched),
        _subtract(after.latency, before.latency),
        _subtract(after.loop_lag, before.loop_lag),
    )


def add_rates(rates: Sequence[Rates]) -> Rates:
    return Rates(
        sum(each.delivered for each in rates),
        sum(each.sent_bytes for each in rates),
        sum(each.fetched for each in rates),
        [sum(counts) for counts in zip(*(each.latency for each in rates), strict=True)],
        [sum(counts) for counts in zip(*(each.loop_lag for each in rates), strict=True)],
    )


def find_quantile(counts: Sequence[int], quantile: float) -> float | None:
    """Return a quantile in seconds, interpolated in its bucket, at most the highest bound.

    `counts` has the buckets of `LATENCY_BUCKETS_S`, and last the values above all of them.
    """
    totals = list(accumulate(counts))
    if not totals or not totals[-1]:
        return None
    rank = quantile * totals[-1]
    index = bisect_left(totals, rank)
    if index >= len(LATENCY_BUCKETS_S):
        return LATENCY_BUCKETS_S[-1]
    low = LATENCY_BUCKETS_S[index - 1] if index else 0.0
    below = totals[index - 1] if index else 0
    share = (rank - below) / counts[index] if counts[index] else 1.0
    return low + share * (LATENCY_BUCKETS_S[index] - low)


def _subtract(after: Sequence[int], before: Sequence[int]) -> list[int]:
    if len(after) != len(before):  # nothing was counted before
        return list(after)
    return [max(0, new - old) for new, old in zip(after, before, strict=True)]


class Sample(NamedTuple):
    """What the charts show of an interval; `number` is that of the interval."""

    number: int
    delivered: float
    clients: int
    latency: Sequence[int]
    rss: int

    def add_worker(self, other: Sample | None) -> Sample:
        """Return the sum with the sample of other workers in the same interval."""
        if other is None:
            return self
        return Sample(
            self.number,
            self.delivered + other.delivered,
            self.clients + other.clients,
            [sum(counts) for counts in zip(self.latency, other.latency, strict=True)],
            self.rss + other.rss,
        )

    def to_json(self) -> list[Any]:
        latency = find_quantile(self.latency, QUANTILES[-1])
        return [self.number, round(self.delivered, 1), self.clients, latency, self.rss]


class History:
    """The samples of one worker. Between calls, `_before` has the counters of the last one."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._before: Counters | None = None
        self._number = 0

    def is_due(self, wall_time: float) -> bool:
        """Return whether an interval has no sample yet, given the time since 1970."""
        return wall_time // SAMPLE_S != self._number

    def add(self, wall_time: float, counters: Counters, clients: int, rss: int) -> None:
        rates = None if self._before is None else compute_rates(self._before, counters)
        self._number, self._before = int(wall_time // SAMPLE_S), counters
        if rates is not None:
            latency = array("I", rates.latency)  # a fifth of a list
            self._samples.append(Sample(self._number, rates.delivered, clients, latency, rss))

    def list_since(self, number: int) -> list[Sample]:
        """Return the samples after the interval of this number, as JSON can have them."""
        return [
            each._replace(latency=list(each.latency))
            for each in self._samples
            if each.number > number
        ]


BUS_TOPIC = "console"
KNOWN_NOTHING = ("", 0, "", 0, 0)  # the arguments of `build_report` of whoever asks first
LOOK_INTERVAL_S = 1.0  # seconds between two looks while nobody asks


class WorkerReport:
    """The report of one process; `run` keeps incidents and history also while nobody watches."""

    def __init__(self, hubs: Hubs, loop_lag: LoopLag, bus: Bus) -> None:
        self._hubs = hubs
        self._loop_lag = loop_lag
        self._worker = bus.worker
        self._watch = PartitionWatch()
        self._incidents = IncidentLog()
        self._history = History()
        self._started_at = time.time()
        self._process = psutil.Process()
        bus.add_handler(BUS_TOPIC, self._handle_request)

    async def run(self) -> None:
        handler = IncidentHandler(self._incidents)
        logging.getLogger("gateway").addHandler(handler)
        try:
            while True:
                await asyncio.sleep(LOOK_INTERVAL_S)
                self.look()
                if self._history.is_due(now := time.time()):
                    rss = self._process.memory_info().rss
                    self._history.add(now, self._read_counters(), self._count_clients(), rss)
        finally:
            logging.getLogger("gateway").removeHandler(handler)

    def look(self) -> None:
        now, wall_time = asyncio.get_running_loop().time(), time.time()
        readers = (
            (hub.name, read.reader)
            for hub in self._iter_started()
            for read in hub.shared_reads.by_partition.values()
        )
        transitions = self._watch.look(readers, now, wall_time)
        errors = {hub.name: hub.cluster.error for hub in self._iter_started()}
        self._incidents.add_clusters(errors, wall_time)
        self._incidents.add_transitions(transitions, wall_time)
        gaps, gap_offsets = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        client_gaps = Counter[tuple[str, str]]()
        for hub in self._iter_started():
            reads, prefix = hub.shared_reads.fetcher.reads, f"{hub.name}/" if hub.name else ""
            for (topic, reason), count in reads.gaps.items():
                gaps[prefix + topic, str(reason)] += count
            for (topic, reason), count in reads.gap_records.items():
                gap_offsets[prefix + topic, str(reason)] += count
            for traffic in hub.traffics:
                for reason, count in traffic.gaps.items():
                    client_gaps[traffic.route, str(reason)] += count
        self._incidents.add_gaps(IncidentKind.GAP, gaps, gap_offsets, wall_time)
        self._incidents.add_gaps(IncidentKind.CLIENT_GAP, client_gaps, {}, wall_time)

    def build_report(
        self, instance: str, version: int, incident_log: str, incident: int, sample: int
    ) -> dict[str, Any]:
        """Return what the asking worker does not know yet, as JSON.

        It knows a watch up to `version`, an incident log up to `incident`, and all samples up to
        that of an interval.
        """
        self.look()
        if instance != self._watch.instance:
            version = 0
        # Its own name: rows are told again also when incidents are known.
        if incident_log != self._incidents.instance:
            incident = 0
        rows, removed = self._watch.list_changes(version)
        return {
            "instance": self._watch.instance,
            "version": self._watch.version,
            "rows": rows,
            "removed": removed,
            "incidentLog": self._incidents.instance,
            "incident": self._incidents.last_number,
            "incidents": self._incidents.list_since(incident),
            "samples": self._history.list_since(sample),
            "counters": self._read_counters(),
            "clients": self._count_clients(),
            "websockets": self._hubs.websocket_count,
            "behind": sum(hub.behind.clients.total() for hub in self._hubs),
            "pid": os.getpid(),
            "started": self._started_at,
            "rss": self._process.memory_info().rss,
            "memory": sum(
                sum(log.bytes for log in hub.logs) + sum(hub.memory.values())
                for hub in self._iter_started()
            ),
            "memoryLimit": self._hubs.settings.memory,
            "reachable": {
                hub.name: bool(hub.started and hub.cluster.is_reachable) for hub in self._hubs
            },
        }

    def _handle_request(self, worker: int, known: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request, which says for each worker what is known of it."""
        return self.build_report(*known.get(str(self._worker), KNOWN_NOTHING))

    def _iter_started(self) -> Iterator[Hub]:
        return (hub for hub in self._hubs if hub.started)

    def _count_clients(self) -> int:
        return sum(traffic.open for hub in self._hubs for traffic in hub.traffics)

    def _read_counters(self) -> Counters:
        delivered = sent_bytes = fetched = 0
        latency = [0] * (len(LATENCY_BUCKETS_S) + 1)
        for hub in self._hubs:
            for traffic in hub.traffics:
                delivered += traffic.records
                sent_bytes += traffic.bytes
                latency = [
                    mine + its for mine, its in zip(latency, traffic.latency.counts, strict=True)
                ]
        for hub in self._iter_started():
            fetched += hub.shared_reads.fetcher.reads.records.total()
        return Counters(
            time.monotonic(), delivered, sent_bytes, fetched, latency,
            list(self._loop_lag.seconds.counts),
        )  # fmt: skip


MAX_INCIDENTS = 300
MAX_TEXT_CHARS = 600
MAX_NAMED_PARTITIONS = 8  # partitions that a text names; the others are counted


class IncidentKind(StrEnum):
    KAFKA_LOST = "kafka-lost"
    KAFKA_BACK = "kafka-back"
    PARTITION_LOST = "partition-lost"
    PARTITION_BACK = "partition-back"
    GAP = "gap"
    CLIENT_GAP = "client-gap"
    WARNING = "warning"
    ERROR = "error"


class Incident(NamedTuple):
    """An event about a topic, route or logger; `at` is in seconds since 1970."""

    number: int
    at: float
    kind: str
    subject: str
    text: str


class IncidentLog:
    """The latest incidents of a process. Numbers of another `instance` mean nothing here."""

    def __init__(self) -> None:
        self.instance = secrets.token_hex(8)
        self.last_number = 0
        self._incidents: deque[Incident] = deque(maxlen=MAX_INCIDENTS)
        self._gap_counts: dict[tuple[IncidentKind, str, str], tuple[int, int]] = {}
        self._lost_clusters: set[str] = set()

    def add(self, kind: IncidentKind, subject: str, text: str, at: float) -> None:
        self.last_number += 1
        text = text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}…"
        self._incidents.append(Incident(self.last_number, at, str(kind), subject, text))

    def list_since(self, number: int) -> list[Incident]:
        return [each for each in self._incidents if each.number > number]

    def add_clusters(self, errors: Mapping[str, Exception | None], at: float) -> None:
        """Add an incident for each cluster that is lost or back since the last call."""
        for name, error in errors.items():
            if (error is not None) == (name in self._lost_clusters):
                continue
            kind = IncidentKind.KAFKA_BACK if error is None else IncidentKind.KAFKA_LOST
            self.add(kind, f"Kafka {name}".rstrip(), str(error or "answers again"), at)
            self._lost_clusters ^= {name}

    def add_transitions(self, transitions: Iterable[Transition], at: float) -> None:
        """Add an incident for each topic and cause of partitions lost or read again."""
        for each in transitions:
            is_lost = each.state in TROUBLED_STATES
            # A partition that is new and well is no incident; `resolving` is not the end of one.
            if not is_lost and each.state == PartitionState.RESOLVING:
                continue
            kind = IncidentKind.PARTITION_LOST if is_lost else IncidentKind.PARTITION_BACK
            topic = f"{each.cluster}/{each.topic}" if each.cluster else each.topic
            self.add(kind, topic, _describe_transition(each), at)

    def add_gaps(
        self,
        kind: IncidentKind,
        counts: Mapping[tuple[str, str], int],
        offsets: Mapping[tuple[str, str], int],
        at: float,
    ) -> None:
        """Add the gaps since the last call, given the totals until now.

        `GAP` is for records that Kafka does not have, `CLIENT_GAP` for those not sent to clients.
        """
        for (subject, reason), count in counts.items():
            key = kind, subject, reason
            before, offsets_before = self._gap_counts.get(key, (0, 0))
            offset_count = offsets.get((subject, reason), 0)
            self._gap_counts[key] = count, offset_count
            if count <= before:
                continue
            text = f"{reason}: {_count(count - before, 'gap')}"
            if offset_count > offsets_before:
                text += f" of {_count(offset_count - offsets_before, 'offset')}"
            self.add(kind, subject, text, at)


class IncidentHandler(logging.Handler):
    """Adds warnings and errors of the log to an `IncidentLog`. Secrets are masked as in the log."""

    def __init__(self, incidents: IncidentLog) -> None:
        super().__init__(logging.WARNING)
        self._incidents = incidents

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = escape_line(redact_text(record.getMessage()))
            kind = IncidentKind.ERROR if record.levelno >= logging.ERROR else IncidentKind.WARNING
            subject = record.name.removeprefix("gateway.")
            self._incidents.add(kind, subject, text, record.created)
        except Exception:  # as other handlers do: a line that cannot be formatted ends nothing
            self.handleError(record)


def _describe_transition(transition: Transition) -> str:
    partitions = transition.partitions
    names = ", ".join(map(str, partitions[:MAX_NAMED_PARTITIONS]))
    more = len(partitions) - MAX_NAMED_PARTITIONS
    names += f" and {more} more" if more > 0 else ""
    if transition.state not in TROUBLED_STATES:
        return f"{names}: read again"
    cause = f" ({transition.cause})" if transition.cause else ""
    return f"{names}: {transition.state}{cause}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
