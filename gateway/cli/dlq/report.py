"""Format dead letters for a terminal or as JSON, and show the progress of long commands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gateway.core.times import format_time

if TYPE_CHECKING:
    from gateway.sidecar.dead_letter_retry.queue import DeadLetterCounts, QueuedDeadLetter

MAX_VALUE_CHARS = 2000  # characters of a key, value or header that are printed

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
    widths = [max(map(len, column)) for column in zip(TABLE_HEADER, *rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in [TABLE_HEADER, *rows]
    )


def format_count_json(count: DeadLetterCounts) -> str:
    oldest = None if count.oldest is None else format_time(count.oldest)
    return json.dumps({**count._asdict(), "oldest": oldest})


def format_dead_letter(dead_letter: QueuedDeadLetter) -> str:
    letter, record = dead_letter.message, dead_letter.record
    lines = [
        f"{record.tp}@{record.offset}  from {letter.origin}@{letter.offset}"
        f"  group {letter.group or '-'}  {format_time(record.timestamp)}"
        f"  retries {letter.retries}",
        *(f"  | {line}" for line in letter.stacktrace.strip().splitlines()),
        f"  key    {_format_bytes(letter.key)}",
        f"  value  {_format_bytes(letter.value)}",
        *(f"  {name}: {_format_bytes(value)}" for name, value in letter.headers),
    ]
    return "\n".join(lines)


def format_dead_letter_json(dead_letter: QueuedDeadLetter) -> str:
    """Return a dead letter as a JSON object; bytes that are not text are base64."""
    from gateway.formats.event import bytes_to_json

    letter, record = dead_letter.message, dead_letter.record
    members: dict[str, Any] = {
        "deadLetter": {"partition": record.tp.partition, "offset": record.offset},
        "topic": letter.origin.topic,
        "partition": letter.origin.partition,
        "offset": letter.offset,
        "timestamp": format_time(letter.timestamp),
        "group": letter.group or None,
        "retries": letter.retries,
        "stacktrace": letter.stacktrace,
        "correlationId": letter.correlation_id,
        "key": bytes_to_json(letter.key),
        "value": bytes_to_json(letter.value),
        "headers": [[name, bytes_to_json(value)] for name, value in letter.headers],
    }
    return json.dumps(members)


@contextmanager
def show_progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr, if that is a terminal; yield a function that takes further steps."""
    import sys

    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda steps: bar.update(task, advance=steps)


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
