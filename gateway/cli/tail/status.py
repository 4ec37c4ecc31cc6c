"""Report the events of a stream on standard error, apart from its records."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

from .in_process import StreamEvent
from .output import Colours, escape_controls, paint

MAX_SHOWN_PARTITIONS = 8  # pending partitions that are named


class StatusReporter:
    def __init__(self, *, quiet: bool, colours: Colours) -> None:
        self._quiet = quiet
        self._colours = colours

    def report(self, text: str, tone: str = "dim") -> None:
        """Write a line; its colour is that of the tone. Failures to write are ignored."""
        if not self._quiet:
            with contextlib.suppress(OSError):
                print(
                    paint(f"gateway: {escape_controls(text)}", tone, self._colours), file=sys.stderr
                )

    def report_event(self, event: StreamEvent, data: dict[str, Any]) -> None:
        """Write a line about a control event, except `position` and `end`."""
        match event.name:
            case "begin":
                self.report(_describe_begin(data))
            case "ready":
                note = " (found by time)" if data.get("resolved") == "approximate" else ""
                self.report(
                    f"{_format_partition(data)} is ready at {data.get('offset')}{note}", "good"
                )
            case "gap":
                self.report(describe_gap(data), "warn")
            case "error":
                self.report(f"{data.get('code')}: {data.get('message')}", "bad")
            case "end" | "position":
                pass
            case _:
                self.report(f"{event.name} {json.dumps(data, ensure_ascii=False)}")


def describe_gap(data: dict[str, Any]) -> str:
    if data.get("topic") is None:
        return f"gap: it is not known what was missed ({data.get('reason')})"
    span = f"from offset {data.get('from')} to {data.get('to')}"
    return f"gap in {_format_partition(data)} {span} ({data.get('reason')})"


def _describe_begin(data: dict[str, Any]) -> str:
    counts = data.get("partitions") or {}
    topics = ", ".join(
        f"{name} ({count} partition{'' if count == 1 else 's'})" for name, count in counts.items()
    )
    pending = [_format_partition(each) for each in data.get("pending") or ()]
    if not pending:
        return f"following {topics}"
    unnamed = len(pending) - MAX_SHOWN_PARTITIONS
    more = f" and {unnamed} more" if unnamed > 0 else ""
    return f"following {topics}; not ready yet: {', '.join(pending[:MAX_SHOWN_PARTITIONS])}{more}"


def _format_partition(data: dict[str, Any]) -> str:
    return f"{data.get('topic')}-{data.get('partition')}"
