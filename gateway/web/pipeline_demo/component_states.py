"""Report the states of the demo's components in a topic that the page streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Literal

from gateway.web.demo.record_sender import open_sender

ComponentState = Literal["starting", "running", "failed"]


class ComponentStates:
    """Publishes each change of a component's state once, also from before `run`."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = list(servers)
        self._reported: dict[str, tuple[ComponentState, str]] = {}
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()

    def report_state(self, component: str, state: ComponentState, text: str) -> None:
        if self._reported.get(component) != (state, text):
            self._reported[component] = (state, text)
            value = {"part": component, "state": state, "text": text}
            self._queue.put_nowait(json.dumps(value).encode())

    async def run(self) -> None:
        async with open_sender(self._servers) as sender:
            while True:
                await (await sender.send("parts", None, await self._queue.get()))
