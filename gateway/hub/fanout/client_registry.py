"""Keep the clients of a hub, so that all can be visited while they come and go.

Removing a client moves the last one into its place, so that an iteration from the last to the first
needs no copy. A copy of a million blocked the loop, and the garbage collector then traversed it for
35 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import Client


NOT_REGISTERED = -1


class ClientRegistry:
    """The clients of a hub that have subscribed and are not closed yet.

    Invariant between calls: the `registry_index` of each client is its place in `_clients`, and
    that of every other client of the hub is `NOT_REGISTERED`.
    """

    def __init__(self) -> None:
        self._clients: list[Client] = []

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, client: Client) -> bool:
        return client.registry_index != NOT_REGISTERED

    def __iter__(self) -> Iterator[Client]:
        """Iterate over all clients from the last to the first, while clients come and go.

        Each client that is there all the time is visited. One that was visited may be again, if
        it was moved into the place of one that left; clients that came meanwhile may be missed.
        """
        index = len(self._clients)
        while (index := min(index, len(self._clients)) - 1) >= 0:
            yield self._clients[index]

    def add(self, client: Client) -> None:
        client.registry_index = len(self._clients)
        self._clients.append(client)

    def discard(self, client: Client) -> None:
        index, client.registry_index = client.registry_index, NOT_REGISTERED
        if index == NOT_REGISTERED:
            return
        last = self._clients.pop()
        if last is not client:
            self._clients[index] = last
            last.registry_index = index
