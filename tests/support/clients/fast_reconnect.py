"""A browser in a hurry: comes back at once after a cut, so that a test can have hundreds."""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

from support.clients.raw import RawClient

BROWSER_HEADERS = {
    "User-Agent": "Mozilla/5.0",
    "Sec-Fetch-Mode": "cors",
}  # how an EventSource is known


class FastReconnectClient(RawClient):
    """A `RawClient` that the server's `retry:` does not slow down."""

    name: ClassVar[str] = "hasty"

    def __init__(self, url: str, **options: Any) -> None:
        headers = BROWSER_HEADERS | options.pop("headers", {})
        super().__init__(url, headers=headers, **options)

    @property
    def reconnect_delay(self) -> float:
        return 0.02

    @reconnect_delay.setter
    def reconnect_delay(self, told: float) -> None:
        pass


def cut_at_random(client: RawClient, rng: Random) -> None:
    """Cut within the head, within BEGIN, or at any byte of what follows."""
    where = rng.choice([(0, 400), (300, 800), (800, 4000), (800, 60_000)])
    client.cut_after(rng.randrange(*where), reset=rng.random() < 0.3)
