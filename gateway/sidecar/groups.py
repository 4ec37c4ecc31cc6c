"""Consumer groups for operators: which there are, how far behind they are, where they go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.core.log.record import TopicPartition
from gateway.errors import GroupFailed, GroupInUse
from gateway.kafka.admin import groups as group_admin
from gateway.kafka.client.offsets import EARLIEST, LATEST, READ_UNCOMMITTED, Offset
from gateway.sidecar.http.body import read
from gateway.sidecar.http.spec import wrong
from gateway.sidecar.http.status import Refusal, answer

from .context import Context

LARGEST = 1 << 20  # bytes of a request
NO_SUCH_GROUP = 69  # GROUP_ID_NOT_FOUND
POSITIONS: Mapping[str, int] = {"earliest": EARLIEST, "latest": LATEST}


class Groups:
    """What is asked of them below /adm/groups."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def listed(self, request: Request) -> Response:
        self._context.reachable()
        found = await group_admin.groups(self._context.cluster)
        return answer(
            [{"group": each.name, "type": each.type, "state": each.state} for each in found]
        )

    async def lag(self, request: Request) -> Response:
        self._context.reachable()
        group = request.path_params["group"]
        async with _told(group):
            found = await group_admin.lag(self._context.cluster, group)
        partitions = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": each.committed,
                "end": each.end,
                "lag": each.lag,
                "owner": each.owner,
            }
            for tp, each in sorted(found.items())
        ]
        total = sum(each.lag or 0 for each in found.values())
        return answer({"group": group, "lag": total, "partitions": partitions})

    async def seek(self, request: Request) -> Response:
        data, kind = await read(request, LARGEST), request.headers.get("content-type")
        body = self._context.spec["seekGroup"].body(data, kind)
        self._context.reachable()
        group, offsets = request.path_params["group"], await self._offsets(body["offsets"])
        async with _told(group):
            await group_admin.set_offsets(self._context.cluster, group, offsets)
        told = [
            {"topic": tp.topic, "partition": tp.partition, "offset": offset}
            for tp, offset in offsets.items()
        ]
        return answer({"group": group, "offsets": told})

    async def _offsets(self, wanted: Sequence[Mapping[str, Any]]) -> dict[TopicPartition, int]:
        """Raises Refusal 400 for a partition that is not there, or there twice."""
        found: dict[TopicPartition, int] = {}
        specs: dict[TopicPartition, int] = {}
        for index, each in enumerate(wanted):
            tp = TopicPartition(each["topic"], each["partition"])
            known = await self._context.topic(tp.topic)
            if tp.partition not in known.partitions:
                what = f"topic {tp.topic} has 0 to {len(known.partitions) - 1}"
                raise wrong(f"offsets[{index}].partition", what)
            if tp in found or tp in specs:
                raise wrong(f"offsets[{index}]", f"{tp} is there twice; give it once")
            if "offset" in each:
                found[tp] = each["offset"]
            else:
                specs[tp] = each.get("timestamp", POSITIONS.get(each.get("position", ""), LATEST))
        return found | await self._looked_up(specs)

    async def _looked_up(self, specs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """A time behind the last record is the end."""
        cluster = self._context.cluster
        listed = await cluster.list_offsets(specs, READ_UNCOMMITTED) if specs else {}
        late = [tp for tp, one in listed.items() if isinstance(one, Offset) and one.offset < 0]
        if late:
            ends = dict.fromkeys(late, LATEST)
            listed = {**listed, **await cluster.list_offsets(ends, READ_UNCOMMITTED)}
        found: dict[TopicPartition, int] = {}
        for tp in specs:
            one = listed.get(tp)
            if not isinstance(one, Offset):
                what = f"the offsets of {tp} are not known now; try again"
                raise Refusal(503, what, code="KAFKA_UNAVAILABLE", retry_after=1.0)
            found[tp] = one.offset
        return found


@asynccontextmanager
async def _told(group: str) -> AsyncIterator[None]:
    """What is the caller's to change, as that; the rest as Kafka's errors are."""
    try:
        yield
    except GroupInUse as error:
        raise Refusal(409, str(error), code="GROUP_IN_USE") from error
    except GroupFailed as error:
        if error.code != NO_SUCH_GROUP:
            raise
        what = f"there is no group {group}; GET /adm/groups lists them"
        raise Refusal(404, what, code="UNKNOWN_GROUP") from error
