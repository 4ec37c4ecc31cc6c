"""Serve a bridge from HTTP to Kafka as people write it: Starlette, aiokafka, the standard json.

python -m bench.peers.bridge_server produce|consume SERVERS TOPIC CLIENTS BATCH
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

WORK, SERVERS, TOPIC, CLIENTS, BATCH = sys.argv[1:]
producer: AIOKafkaProducer
consumers: list[AIOKafkaConsumer] = []


async def produce(request: Request) -> JSONResponse:
    offsets = []
    for record in (await request.json())["records"]:
        value = json.dumps(record["value"]).encode()
        written = await producer.send_and_wait(TOPIC, value, key=record["key"].encode())
        offsets.append({"partition": written.partition, "offset": written.offset})
    return JSONResponse({"offsets": offsets})


async def consume(request: Request) -> JSONResponse:
    consumer = consumers[int(request.path_params["client"])]
    found = await consumer.getmany(timeout_ms=300, max_records=int(BATCH))
    return JSONResponse(
        [
            {
                "topic": record.topic,
                "key": record.key.decode(),
                "value": json.loads(record.value),
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "headers": {name: value.decode() for name, value in record.headers},
            }
            for records in found.values()
            for record in records
        ]
    )


async def rewind(request: Request) -> JSONResponse:
    for consumer in consumers:
        await consumer.seek_to_beginning()
    return JSONResponse([len(consumer.assignment()) for consumer in consumers])


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    global producer
    if WORK == "produce":
        producer = AIOKafkaProducer(bootstrap_servers=SERVERS)
        started: list[AIOKafkaProducer | AIOKafkaConsumer] = [producer]
    else:
        for _ in range(int(CLIENTS)):
            consumers.append(
                AIOKafkaConsumer(
                    TOPIC,
                    bootstrap_servers=SERVERS,
                    group_id="bridge",
                    auto_offset_reset="earliest",
                )
            )
        started = [*consumers]
    await asyncio.gather(*(each.start() for each in started))
    yield
    for each in started:
        await each.stop()


routes = [
    Route("/produce", produce, methods=["POST"]),
    Route("/rewind", rewind, methods=["POST"]),
    Route("/records/{client}", consume),
]
app = Starlette(routes=routes, lifespan=lifespan)
listening_socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
print(f"listening on {listening_socket.getsockname()[1]}", flush=True)
uvicorn.Server(config).run([listening_socket])
