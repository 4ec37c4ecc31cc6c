"""The same by HTTP alone: lines of JSON, and a position in each of them.

    python examples/lines.py URL FILE-FOR-THE-POSITION

For any language that has HTTP and JSON; this one takes httpx.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

TIMEOUT = httpx.Timeout(10, read=60)  # seconds; an idle stream has an empty line every 15


def consume(url: str, file: Path) -> None:
    with httpx.Client(timeout=TIMEOUT) as http:
        while True:
            try:
                for line in iter_lines(http, url, load_position(file)):
                    process_line(line)
                    if position := line.get("@position"):
                        save_position(
                            file, position
                        )  # after the work: what was cut off is done again
            except httpx.TransportError as error:
                print(f"cut off: {error!r}", file=sys.stderr)
            time.sleep(1)


def iter_lines(http: httpx.Client, url: str, position: str | None) -> Iterator[dict[str, Any]]:
    start = {"lastEventId": position} if position else {"from": "earliest"}
    headers = {"Accept": "application/x-ndjson"}
    with http.stream("GET", url, params={**start, "positions": "true"}, headers=headers) as answer:
        answer.raise_for_status()
        yield from (json.loads(line) for line in answer.iter_lines() if line)


def process_line(line: dict[str, Any]) -> None:
    if order := line.get("@record"):
        print(order["order"], order["customer"], order["status"], flush=True)
    elif "@gap" in line:
        print("missed", line["@gap"], file=sys.stderr)


def load_position(file: Path) -> str | None:
    return file.read_text() if file.exists() else None


def save_position(file: Path, position: str) -> None:
    """Whole or not at all."""
    new = file.with_suffix(".new")
    new.write_text(position)
    new.replace(file)


if __name__ == "__main__":
    url, file = sys.argv[1:]
    with suppress(KeyboardInterrupt):
        consume(url, Path(file))
