"""Ask Kafka on behalf of an operator, for a bounded time and by a bounded number at a time.

What an operator looks up must not hold anything else up: the sections of the page that ask Kafka
share a few places, wait a few seconds, and show what went wrong instead of what they asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

from starlette.requests import Request

from gateway.config.source.expression import suggest
from gateway.errors import AccessDenied, KafkaError, RequestError, UnknownGroup, UnknownTopic
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import Hubs

LOOKUP_TIMEOUT_S = 8.0  # seconds for an answer, waiting for a place included
MAX_LOOKUPS = 4  # of a process at a time


class KafkaLookup:
    """The places of lookups in Kafka. Owned by `Console`, one per process."""

    def __init__(self, hubs: Hubs, timeout_s: float = LOOKUP_TIMEOUT_S) -> None:
        self._hubs = hubs
        self._timeout_s = timeout_s
        self._places = asyncio.Semaphore(MAX_LOOKUPS)

    @property
    def cluster_names(self) -> list[str]:
        """The names of the clusters; one is empty if it is the only one."""
        return list(self._hubs.by_name)

    @asynccontextmanager
    async def open_hub(self, name: str | None = None) -> AsyncIterator[Hub]:
        """Look something up in the block: yield the hub of a cluster, None for the first one.

        An unknown cluster is a 404. A 503 has the reason if Kafka does not answer in time.
        """
        names = self._hubs.by_name
        if name is not None and name not in names:
            raise RequestError(404, "Unknown cluster", f"{name!r}: {suggest(name, names)}")
        hub = self._hubs.get_hub(next(iter(names)) if name is None else name)
        try:
            async with asyncio.timeout(self._timeout_s), self._places:
                if not hub.started:
                    raise RequestError(503, "Busy", "the gateway is still starting", retry_after=1)
                yield hub
        except TimeoutError:
            detail = f"Kafka has not answered within {self._timeout_s:g} s; try again"
            raise RequestError(503, "Kafka is unavailable", detail, retry_after=1.0) from None
        except (AccessDenied, UnknownGroup, UnknownTopic):
            raise
        except KafkaError as exc:
            # Operators are told why, unlike clients.
            raise RequestError(503, "Kafka is unavailable", str(exc), retry_after=1.0) from None


def read_query(request: Request, known: Collection[str]) -> Mapping[str, str]:
    """Return the parameters of a request; those not in `known` are a 400.

    Ignoring a misspelt one would show something else.
    """
    params = dict(request.query_params)
    unknown = params.keys() - set(known)
    if unknown:
        word = min(unknown)
        raise RequestError(400, "Bad request", f"?{word}= is unknown; {suggest(word, known)}")
    return params
