"""Dead letters on a terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.sidecar.deadletter.counts import DeadLetterCounts
    from gateway.sidecar.deadletter.queue import QueuedDeadLetter

MAX_VALUE_CHARS = 2000  # characters of a value

TABLE_HEADER = ("TOPIC", "GROUP", "WAITING", "TOTAL", "OLDEST", "REASON")


def format_table(counts: Sequence[DeadLetterCounts]) -> str:
    rows = [
        (
            each.topic,
            each.group or "-",
            str(each.waiting),
            str(each.total),
            _format_age(each.oldest),
            each.reason,
        )
        for each in counts
    ]
    widths = [max(len(row[at]) for row in [TABLE_HEADER, *rows]) for at in range(len(TABLE_HEADER))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in [TABLE_HEADER, *rows]
    )


def format_count_json(count: DeadLetterCounts) -> str:
    oldest = None if count.oldest is None else _format_time(count.oldest)
    return json.dumps({**count._asdict(), "oldest": oldest})


def format_dead_letter(dead_letter: QueuedDeadLetter) -> str:
    """Some lines: where it is from, why it is here, the record."""
    letter, record = dead_letter.message, dead_letter.record
    lines = [
        f"{record.tp}@{record.offset}  from {letter.origin}@{letter.offset}"
        f"  group {letter.group or '-'}  {_format_time(record.timestamp)}"
        f"  retries {letter.retries}",
        *(f"  | {line}" for line in letter.stacktrace.strip().splitlines()),
        f"  key    {_format_bytes(letter.key)}",
        f"  value  {_format_bytes(letter.value)}",
        *(f"  {name}: {_format_bytes(value)}" for name, value in letter.headers),
    ]
    return "\n".join(lines)


def format_dead_letter_json(dead_letter: QueuedDeadLetter) -> str:
    from gateway.formats.event import bytes_to_json

    letter, record = dead_letter.message, dead_letter.record
    told: dict[str, Any] = {
        "deadLetter": {"partition": record.tp.partition, "offset": record.offset},
        "topic": letter.origin.topic,
        "partition": letter.origin.partition,
        "offset": letter.offset,
        "timestamp": _format_time(letter.timestamp),
        "group": letter.group or None,
        "retries": letter.retries,
        "stacktrace": letter.stacktrace,
        "correlationId": letter.correlation_id,
        "key": bytes_to_json(letter.key),
        "value": bytes_to_json(letter.value),
        "headers": [[name, bytes_to_json(value)] for name, value in letter.headers],
    }
    return json.dumps(told)


@contextmanager
def show_progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr where that is a terminal; told how many more are done."""
    import sys

    if not sys.stderr.isatty():
        yield lambda more: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda more: bar.update(task, advance=more)


def _format_bytes(data: bytes | None) -> str:
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"{len(data)} bytes: {data[:64].hex()}"
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    return (
        text
        if len(text) <= MAX_VALUE_CHARS
        else f"{text[:MAX_VALUE_CHARS]}... ({len(text)} characters)"
    )


def _format_age(timestamp: int | None) -> str:
    if timestamp is None:
        return "-"
    seconds = max(0, int(time.time() - timestamp / 1000))
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _format_time(timestamp: int) -> str:
    at = datetime.fromtimestamp(timestamp / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
