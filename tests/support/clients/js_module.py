"""The gateway's own JavaScript module, in a Node of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from support.clients.client import ProcessClient, ReceivedEvent
from support.clients.node_sse import ensure_installed
from support.waiting import wait_until

from gateway.web.http import assets

MODULE_PATH = assets.JS_DIRECTORY / "gateway.js"


class ModuleClient(ProcessClient):
    """A Stream of the module.

    Attributes:
        options: The options of the Stream, as JSON.
        states: All states that it was in, each with its reason.
        troubles: What was said of failed attempts, as `onstate` got it.
        warnings: What it wrote to the console.
        live_reasons: The reason of each state `live`.
        twin_events: The events of the second stream, which a call of `twin` opened.
        twin_troubles: As `troubles`, of the second stream.
        results_by_argument: The results of the methods called, by their argument (as JSON).
    """

    name: ClassVar[str] = "gateway.js"
    reconnects_itself: ClassVar[bool] = True
    _buffer = b""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(url)
        self.options = dict(options or {})
        self.states: list[tuple[str, str | None]] = []
        self.troubles: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self.live_reasons: list[str | None] = []
        self.twin_events: list[ReceivedEvent] = []
        self.twin_troubles: list[dict[str, Any]] = []
        self.results_by_argument: dict[str, Any] = {}

    async def build_command(self) -> Sequence[str]:
        place = await asyncio.to_thread(ensure_installed)
        return [
            "node",
            str(place / "module.mjs"),
            str(MODULE_PATH),
            self.url,
            json.dumps(self.options),
        ]

    def feed_output(self, piece: bytes) -> None:
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "opened" in message:
                self.open_count += 1
                self.live_reasons.append(message.get("reason"))
            elif "hint" in message:
                (self.twin_troubles if message.get("twin") else self.troubles).append(message)
            elif "warning" in message:
                self.warnings.append(message["warning"])
            elif "state" in message:
                self.states.append((message["state"], message.get("reason")))
                self.is_closed |= message["state"] == "closed"
            elif "error" in message:
                self.errors.append(message["error"])
            elif "result" in message:
                self.results_by_argument[json.dumps(message.get("argument"))] = message["result"]
            else:
                events = self.twin_events if message.get("twin") else self.events
                events.append(
                    ReceivedEvent(event=message["event"], id=message["id"], data=message["data"])
                )

    def call_method(self, method: str, argument: Any = None) -> None:
        """Call a method of the Stream."""
        assert self._process is not None and self._process.stdin is not None
        line = {"call": method, "with": argument} if argument is not None else {"call": method}
        self._process.stdin.write(json.dumps(line).encode() + b"\n")

    async def wait_for_result(self, argument: Any) -> Any:
        """Return the result of the call with this argument."""
        key = json.dumps(argument)
        await wait_until(
            lambda: key in self.results_by_argument, lambda: f"{key}: {self.describe_state()}", 60
        )
        return self.results_by_argument[key]

    async def wait_until_live(self, open_count: int = 1) -> None:
        """Wait until the stream has begun so many times."""
        await wait_until(lambda: self.open_count >= open_count, self.describe_state, 60)
