"""Keep garbage collections rare and short, however many clients there are.

Nearly all that the gateway creates is freed by its reference count: streams that come and go over
HTTP/1.1 and WebSockets leave nothing. Requests that are answered by ASGI alone may leave cycles of
tasks and exceptions, such as streams of HTTP/1.0 (17 KB each). A full collection frees them, and
takes time in proportion to all that exists: 50 ms for 10,000 clients, seconds for a million. So it
is done when much may be garbage, and not whenever clients are many.
"""

from __future__ import annotations

import asyncio
import gc

from gateway.hub.fanout.hubs import Hubs

CHECK_INTERVAL_S = 10.0
NEW_OBJECTS, YOUNG_COLLECTIONS = 2000, 5  # a collection of generation 1 traverses 14,000 objects
NO_COLLECTIONS = 1_000_000
MAX_PENDING_OBJECTS = 500_000  # that may be garbage before they are looked at: 65 MB
OBJECTS_PER_CLIENT = 40  # at most, which a client that stays keeps alive


def tune_garbage_collector() -> None:
    """Have the interpreter collect by itself only what was created lately.

    Objects that exist when serving starts are frozen, and never traversed again. With a million
    clients the longest pause was 34 ms; it was the same for 2.5 times as many young objects. Full
    collections are left to `collect_garbage_forever`.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, YOUNG_COLLECTIONS, NO_COLLECTIONS)


async def collect_garbage_forever(hubs: Hubs) -> None:
    """Do a full collection whenever more was created and kept than new clients account for."""
    clients_before = 0  # at the last one
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        client_count = sum(len(hub.clients) for hub in hubs)
        new_clients = max(0, client_count - clients_before)
        if count_pending_objects() - OBJECTS_PER_CLIENT * new_clients > MAX_PENDING_OBJECTS:
            gc.collect()
            clients_before = client_count


def count_pending_objects() -> int:
    """Return about how many objects were kept since the last full collection."""
    new_objects, young_collections, older_collections = gc.get_count()
    # The one that reaches the threshold of a generation is counted in the next generation.
    young_collections += older_collections * (YOUNG_COLLECTIONS + 2)
    return young_collections * NEW_OBJECTS + new_objects
