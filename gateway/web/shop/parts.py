"""How the parts of the demo are, told in a topic that the page streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Literal

from aiokafka import AIOKafkaProducer

State = Literal["starting", "running", "failed"]


class Parts:
    """Tells each state of a part once; it may be told before `run` has begun."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = list(servers)
        self._told: dict[str, tuple[State, str]] = {}
        self._due: asyncio.Queue[bytes] = asyncio.Queue()

    def tell(self, part: str, state: State, text: str) -> None:
        if self._told.get(part) != (state, text):
            self._told[part] = (state, text)
            value = {"part": part, "state": state, "text": text}
            self._due.put_nowait(json.dumps(value).encode())

    async def run(self) -> None:
        """Until cancelled."""
        producer = AIOKafkaProducer(bootstrap_servers=self._servers, client_id="shop-parts")
        await producer.start()
        try:
            while True:
                await producer.send_and_wait("parts", await self._due.get())
        finally:
            await producer.stop()
