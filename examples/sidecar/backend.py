"""A back end in FastAPI that is called with orders out of Kafka, and writes receipts to Kafka, by
HTTP alone. See README.md.

Batches come at least once: after a crash, or an answer that was lost, one comes again. So what is
done is known by its place (topic, partition, offset), and a receipt is written with an
Idempotency-Key made of it: once, however often it is tried.
"""

from __future__ import annotations

import os
import traceback
from collections import defaultdict
from typing import Any

import httpx
from fastapi import FastAPI

SIDECAR = os.environ.get("SIDECAR", "http://127.0.0.1:8090")

app = FastAPI()
sidecar = httpx.AsyncClient(base_url=SIDECAR, timeout=20, trust_env=False)
processed_offsets: dict[
    tuple[str, int], int
] = {}  # the last offset of each partition; yours is in a database
totals: defaultdict[str, float] = defaultdict(float)


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "up"}


@app.get("/totals")
async def get_totals() -> dict[str, float]:
    return totals


@app.post("/kafka/records")
async def process_batch(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An item for each record, in their order."""
    return [await build_result(record) for record in batch]


async def build_result(record: dict[str, Any]) -> dict[str, Any]:
    place = {name: record[name] for name in ("topic", "partition", "offset")}
    try:
        await process_record(record)
    except httpx.HTTPError:
        raise  # 500: nothing is wrong with the record, so it is to come again
    except Exception:
        return {"record": place, "processed": False, "stacktrace": traceback.format_exc()}
    return {"record": place, "processed": True}


async def process_record(record: dict[str, Any]) -> None:
    """Raises what is wrong with the record."""
    partition, offset = (record["topic"], record["partition"]), record["offset"]
    if offset <= processed_offsets.get(partition, -1):
        return
    order = record["value"]
    total = order["quantity"] * order["price"]
    if not total > 0:
        raise ValueError(f"order {order['order']} costs {total}")
    receipt = {"key": record["key"], "value": {"order": order["order"], "total": total}}
    answer = await sidecar.post(
        "/producers/receipts",
        json={"records": [receipt]},
        headers={
            "Idempotency-Key": f"{record['topic']}-{record['partition']}-{offset}",
            "X-Correlation-Id": record["correlationId"],
        },
    )
    answer.raise_for_status()
    totals[order["customer"]] += total
    processed_offsets[partition] = offset
