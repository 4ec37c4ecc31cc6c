"""What is no record, as lines of standard error."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

from .item import Item
from .screen import Colours, paint, safe

SHOWN_PARTITIONS = 8


class Notes:
    def __init__(self, *, quiet: bool, colours: Colours) -> None:
        self._quiet = quiet
        self._colours = colours

    def say(self, text: str, tone: str = "dim") -> None:
        if not self._quiet:
            with contextlib.suppress(OSError):
                print(paint(f"gateway: {safe(text)}", tone, self._colours), file=sys.stderr)

    def tell(self, item: Item, told: dict[str, Any]) -> None:
        """A control event; `position` is silent."""
        match item.name:
            case "begin":
                self.say(_begin(told))
            case "ready":
                about = " (found by time)" if told.get("resolved") == "approximate" else ""
                self.say(f"{_place(told)} is ready at {told.get('offset')}{about}", "good")
            case "gap":
                self.say(gap(told), "warn")
            case "error":
                self.say(f"{told.get('code')}: {told.get('message')}", "bad")
            case "end" | "position":
                pass
            case _:
                self.say(f"{item.name} {json.dumps(told, ensure_ascii=False)}")


def gap(told: dict[str, Any]) -> str:
    if told.get("topic") is None:
        return f"gap: what was missed is not known ({told.get('reason')})"
    span = f"from offset {told.get('from')} to {told.get('to')}"
    return f"gap in {_place(told)} {span} ({told.get('reason')})"


def _begin(told: dict[str, Any]) -> str:
    counts = told.get("partitions") or {}
    topics = ", ".join(
        f"{name} ({count} partition{'' if count == 1 else 's'})" for name, count in counts.items()
    )
    pending = [_place(each) for each in told.get("pending") or ()]
    if not pending:
        return f"following {topics}"
    more = (
        "" if len(pending) <= SHOWN_PARTITIONS else f" and {len(pending) - SHOWN_PARTITIONS} more"
    )
    return f"following {topics}; not ready yet: {', '.join(pending[:SHOWN_PARTITIONS])}{more}"


def _place(told: dict[str, Any]) -> str:
    return f"{told.get('topic')}-{told.get('partition')}"
