"""Split events about several partitions, as a page would (WHATWG HTML knows nothing of them)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

SINGLE_NAMES = {"partitions-ready": "ready", "partitions-error": "error"}
ERROR_NAMES = ("error", "partitions-error")


def iter_single_events(name: str, data: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and data of each `ready` or `error` that an event stands for."""
    if name not in SINGLE_NAMES:
        yield name, data
        return
    for group in data["topics"]:
        common = {key: group[key] for key in ("topic", "resolved", "code") if key in group}
        offsets = group.get("offsets", [None] * len(group["partitions"]))
        for partition, offset in zip(group["partitions"], offsets, strict=True):
            yield SINGLE_NAMES[name], {**common, "partition": partition, "offset": offset}
