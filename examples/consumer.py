"""Print the orders of a topic, each at least once, however often this is killed.

    python examples/consumer.py SERVERS FILE-FOR-THE-POSITION

It reads Kafka itself, within this process: no gateway has to run. `make demo` prints its servers.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from gateway import Gap, Gateway, Record


async def consume(servers: str, file: Path) -> None:
    async with Gateway(servers=servers) as gateway:
        async for record in gateway.subscribe(
            "orders", start="earliest", position=load_position(file), on_gap=report_gap
        ):
            process_record(record)
            save_position(file, record.position)  # after the work: what was cut off is done again


def process_record(record: Record) -> None:
    order = record.json()
    print(order["order"], order["customer"], order["status"], flush=True)


def report_gap(gap: Gap) -> None:
    print(
        f"{gap.topic}-{gap.partition}: {gap.from_offset} to {gap.to_offset} will not come "
        f"({gap.reason})",
        file=sys.stderr,
    )


def load_position(file: Path) -> str | None:
    return file.read_text() if file.exists() else None


def save_position(file: Path, position: str) -> None:
    """Whole or not at all."""
    new = file.with_suffix(".new")
    new.write_text(position)
    new.replace(file)


if __name__ == "__main__":
    servers, file = sys.argv[1:]
    with suppress(KeyboardInterrupt):
        asyncio.run(consume(servers, Path(file)))
