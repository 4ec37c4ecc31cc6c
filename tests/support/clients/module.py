"""The gateway's own JavaScript module, in a Node of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from support.clients.client import Event, ProcessClient
from support.clients.node_sse import installed
from support.until import until

from gateway.web.app import assets

MODULE = assets.DIRECTORY / "gateway.js"


class ModuleClient(ProcessClient):
    """options: of its Stream, as JSON.

    states: all that it was in, with the reason where there is one.
    twin:   the events of its second stream, if `twin` was called.
    came:   what methods that were called came to, by what they were given (as JSON).
    """

    name: ClassVar[str] = "gateway.js"
    reconnects: ClassVar[bool] = True
    _rest = b""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(url)
        self.options = dict(options or {})
        self.states: list[tuple[str, str | None]] = []
        self.twin: list[Event] = []
        self.came: dict[str, Any] = {}

    async def command(self) -> Sequence[str]:
        place = await asyncio.to_thread(installed)
        return ["node", str(place / "module.mjs"), str(MODULE), self.url, json.dumps(self.options)]

    def heard(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "opened" in told:
                self.opened += 1
            elif "state" in told:
                self.states.append((told["state"], told.get("reason")))
                self.closed |= told["state"] == "closed"
            elif "error" in told:
                self.errors.append(told["error"])
            elif "came" in told:
                self.came[json.dumps(told.get("of"))] = told["came"]
            else:
                events = self.twin if told.get("twin") else self.events
                events.append(Event(event=told["event"], id=told["id"], data=told["data"]))

    def call(self, method: str, argument: Any = None) -> None:
        """Have a method of the Stream called."""
        assert self._process is not None and self._process.stdin is not None
        line = {"call": method, "with": argument} if argument is not None else {"call": method}
        self._process.stdin.write(json.dumps(line).encode() + b"\n")

    async def result(self, argument: Any) -> Any:
        """What the call with this argument came to."""
        key = json.dumps(argument)
        await until(lambda: key in self.came, lambda: f"{key}: {self.state()}", 60)
        return self.came[key]

    async def live(self, times: int = 1) -> None:
        """Until it has begun so many times."""
        await until(lambda: self.opened >= times, self.state, 60)
