"""Keep the latest incidents of a process: lost and recovered partitions, gaps, warnings, errors.

The gateway logs the same lines; this keeps them where an operator's page can show them. The oldest
are dropped. Sans-I/O but for `IncidentHandler`, which is a handler of `logging`.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from gateway.telemetry.logs import escape_line, redact_text

from .partition_watch import TROUBLED_STATES, PartitionState, Transition, name_partition

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
