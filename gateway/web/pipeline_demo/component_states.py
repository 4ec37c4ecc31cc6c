"""Report the states of the demo's components in a topic that the page streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Literal

from gateway.web.demo.record_sender import open_sender

ComponentState = Literal["starting", "running", "failed"]


class ComponentStates:
    """Publishes each change of a component's state once.

    States may be reported before `run` has begun: they are queued.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        """Create it, without connecting.

        Args:
            servers: The bootstrap servers of Kafka.
        """
        self._servers = list(servers)
        self._reported: dict[str, tuple[ComponentState, str]] = {}
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()

    def report_state(self, component: str, state: ComponentState, text: str) -> None:
        """Report a state, with a text for people; it is ignored if nothing has changed."""
        if self._reported.get(component) != (state, text):
            self._reported[component] = (state, text)
            value = {"part": component, "state": state, "text": text}
            self._queue.put_nowait(json.dumps(value).encode())

    async def run(self) -> None:
        """Publish what is reported until cancelled."""
        async with open_sender(self._servers) as sender:
            while True:
                await (await sender.send("parts", None, await self._queue.get()))
