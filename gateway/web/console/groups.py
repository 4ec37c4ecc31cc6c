"""List the consumer groups of a cluster, and describe one: its members, its offsets and its lag.

Kafka is asked when an operator looks, never by the feed: brokers list their groups on demand only,
and a cluster may have thousands of them. Sections of the page that ask Kafka do so by a
`KafkaLookup`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from gateway.config.source.substitution import suggest
from gateway.core.log.record import TopicPartition
from gateway.errors import AccessDenied, KafkaError, RequestError, UnknownGroup, UnknownTopic
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import Hubs
from gateway.kafka.admin import PartitionLag, describe_group, fetch_lag, list_groups
from gateway.kafka.protocol.group_messages import GroupDescription, GroupListing

LOOKUP_TIMEOUT_S = 8.0  # seconds for an answer, waiting for a place included
MAX_LOOKUPS = 4  # of a process at a time


class KafkaLookup:
    """The places of lookups in Kafka. Owned by `Console`, one per process.

    What an operator looks up must not hold anything else up: the sections of the page that ask
    Kafka share a few places, wait a few seconds, and show what went wrong instead of what they
    asked for.
    """

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


PAGE_SIZE = 100  # groups of one page
MAX_MEMBERS = 500  # members that are described
MAX_PARTITIONS = 1000  # partitions that are described, those furthest behind first
HEADERS = {"Cache-Control": "no-store"}


class GroupEndpoints:
    def __init__(self, lookup: KafkaLookup) -> None:
        self._lookup = lookup

    async def list_groups(self, request: Request) -> Response:
        query = read_query(request, ("cluster", "search", "after"))
        async with self._lookup.open_hub(query.get("cluster")) as hub:
            listings = await list_groups(hub.cluster)
            name = hub.name
        page = build_page(listings, query.get("search", ""), query.get("after", ""))
        body = {"cluster": name, "clusters": self._lookup.cluster_names, **page}
        return Response(orjson.dumps(body), headers=HEADERS, media_type="application/json")

    async def describe_group(self, request: Request) -> Response:
        query = read_query(request, ("cluster", "group"))
        if "group" not in query:
            raise RequestError(400, "Bad request", "say which: ?group=")
        async with self._lookup.open_hub(query.get("cluster")) as hub:
            description = await describe_group(hub.cluster, query["group"])
            lags = await fetch_lag(hub.cluster, query["group"], description)
        body = build_description(description, lags)
        return Response(orjson.dumps(body), headers=HEADERS, media_type="application/json")


def build_page(listings: Sequence[GroupListing], search: str, after: str) -> dict[str, Any]:
    """Return a page of sorted groups as JSON, after the last name of the page before."""
    wanted = search.lower()
    found = [each for each in listings if wanted in each.name.lower()]
    following = [each for each in found if not after or each.name > after]
    shown = following[:PAGE_SIZE]
    return {
        "groups": [
            {"group": each.name, "state": each.state, "type": each.type, "protocol": each.protocol}
            for each in shown
        ],
        "total": len(found),
        "next": shown[-1].name if len(following) > len(shown) else None,
    }


def build_description(
    description: GroupDescription, lags: dict[TopicPartition, PartitionLag]
) -> dict[str, Any]:
    behind = sorted(lags.items(), key=lambda item: (-(item[1].lag or 0), item[0]))
    known = [lag.lag for lag in lags.values() if lag.lag is not None]
    members = sorted(description.members, key=lambda member: (member.client_id, member.id))
    return {
        "group": description.name,
        "state": description.state,
        "type": description.type,
        "assignor": description.assignor or None,
        "lag": sum(known) if known else None,
        "memberCount": len(members),
        "partitionCount": len(behind),
        "members": [
            {
                "id": member.id,
                "instanceId": member.instance_id,
                "clientId": member.client_id,
                "host": member.host.removeprefix("/"),  # as Java writes an address
                "partitions": len(member.owned),
            }
            for member in members[:MAX_MEMBERS]
        ],
        "partitions": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": lag.committed,
                "end": lag.end_offset,
                "lag": lag.lag,
                "owner": lag.owner,
            }
            for tp, lag in behind[:MAX_PARTITIONS]
        ],
    }
