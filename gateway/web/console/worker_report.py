"""Report to the console what one worker knows: partitions, incidents, counters, history.

Every worker answers `BUS_TOPIC` with what the asking worker does not know yet, so that nothing is
sent twice: with 2,000 partitions at rest a report has 400 bytes.

The latest incidents are kept where an operator's page can show them: lost and recovered partitions,
gaps, warnings, errors. The gateway logs the same lines; the oldest are dropped here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import psutil

from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import Hubs
from gateway.telemetry.counts import LATENCY_BUCKETS_S
from gateway.telemetry.logs import escape_line, redact_text
from gateway.telemetry.process import LoopLag
from gateway.web.console.history import Counters, History
from gateway.web.console.partition_watch import (
    TROUBLED_STATES,
    PartitionState,
    PartitionWatch,
    Transition,
    name_partition,
)
from gateway.web.workers.bus import Bus

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

    def add(self, kind: IncidentKind, subject: str, text: str, at: float) -> None:
        self.last_number += 1
        text = text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}…"
        self._incidents.append(Incident(self.last_number, at, str(kind), subject, text))

    def list_since(self, number: int) -> list[Incident]:
        return [each for each in self._incidents if each.number > number]

    def add_transitions(self, transitions: Iterable[Transition], at: float) -> None:
        """Add an incident for each topic and cause of partitions lost or read again."""
        for each in transitions:
            is_lost = each.state in TROUBLED_STATES
            # A partition that is new and well is no incident; `resolving` is not the end of one.
            if not is_lost and each.state == PartitionState.RESOLVING:
                continue
            kind = IncidentKind.PARTITION_LOST if is_lost else IncidentKind.PARTITION_BACK
            self.add(kind, each.topic, _describe_transition(each), at)

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
    names = ", ".join(
        name_partition(transition.cluster, transition.topic, each)
        for each in partitions[:MAX_NAMED_PARTITIONS]
    )
    more = len(partitions) - MAX_NAMED_PARTITIONS
    names += f" and {more} more" if more > 0 else ""
    if transition.state not in TROUBLED_STATES:
        return f"{names}: read again"
    cause = f" ({transition.cause})" if transition.cause else ""
    return f"{names}: {transition.state}{cause}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
