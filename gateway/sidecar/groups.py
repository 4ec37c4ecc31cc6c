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
from gateway.kafka.client.offsets import EARLIEST, LATEST, READ_UNCOMMITTED, OffsetAndTimestamp
from gateway.sidecar.http.body import read_body
from gateway.sidecar.http.spec import create_invalid_request
from gateway.sidecar.http.status import StatusError, build_json_response

from .context import Context

MAX_BODY_BYTES = 1 << 20  # bytes of a request
GROUP_ID_NOT_FOUND = 69  # GROUP_ID_NOT_FOUND
OFFSET_SPECS: Mapping[str, int] = {"earliest": EARLIEST, "latest": LATEST}


class GroupEndpoints:
    """What is asked of them below /adm/groups."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def list_groups(self, request: Request) -> Response:
        self._context.require_kafka()
        found = await group_admin.list_groups(self._context.cluster)
        return build_json_response(
            [{"group": each.name, "type": each.type, "state": each.state} for each in found]
        )

    async def get_lag(self, request: Request) -> Response:
        self._context.require_kafka()
        group = request.path_params["group"]
        async with _translate_errors(group):
            found = await group_admin.fetch_lag(self._context.cluster, group)
        partitions = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": each.committed,
                "end": each.end_offset,
                "lag": each.lag,
                "owner": each.owner,
            }
            for tp, each in sorted(found.items())
        ]
        total = sum(each.lag or 0 for each in found.values())
        return build_json_response({"group": group, "lag": total, "partitions": partitions})

    async def seek(self, request: Request) -> Response:
        data, kind = await read_body(request, MAX_BODY_BYTES), request.headers.get("content-type")
        body = self._context.spec["seekGroup"].parse_body(data, kind)
        self._context.require_kafka()
        group, offsets = request.path_params["group"], await self._resolve_offsets(body["offsets"])
        async with _translate_errors(group):
            await group_admin.set_offsets(self._context.cluster, group, offsets)
        told = [
            {"topic": tp.topic, "partition": tp.partition, "offset": offset}
            for tp, offset in offsets.items()
        ]
        return build_json_response({"group": group, "offsets": told})

    async def _resolve_offsets(
        self, wanted: Sequence[Mapping[str, Any]]
    ) -> dict[TopicPartition, int]:
        """Raises Refusal 400 for a partition that is not there, or there twice."""
        found: dict[TopicPartition, int] = {}
        specs: dict[TopicPartition, int] = {}
        for index, each in enumerate(wanted):
            tp = TopicPartition(each["topic"], each["partition"])
            known = await self._context.get_topic(tp.topic)
            if tp.partition not in known.partitions:
                what = f"topic {tp.topic} has 0 to {len(known.partitions) - 1}"
                raise create_invalid_request(f"offsets[{index}].partition", what)
            if tp in found or tp in specs:
                raise create_invalid_request(
                    f"offsets[{index}]", f"{tp} is there twice; give it once"
                )
            if "offset" in each:
                found[tp] = each["offset"]
            else:
                specs[tp] = each.get(
                    "timestamp", OFFSET_SPECS.get(each.get("position", ""), LATEST)
                )
        return found | await self._look_up_offsets(specs)

    async def _look_up_offsets(
        self, specs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """A time behind the last record is the end."""
        cluster = self._context.cluster
        listed = await cluster.list_offsets(specs, READ_UNCOMMITTED) if specs else {}
        late = [
            tp
            for tp, one in listed.items()
            if isinstance(one, OffsetAndTimestamp) and one.offset < 0
        ]
        if late:
            ends = dict.fromkeys(late, LATEST)
            listed = {**listed, **await cluster.list_offsets(ends, READ_UNCOMMITTED)}
        found: dict[TopicPartition, int] = {}
        for tp in specs:
            one = listed.get(tp)
            if not isinstance(one, OffsetAndTimestamp):
                what = f"the offsets of {tp} are not known now; try again"
                raise StatusError(503, what, code="KAFKA_UNAVAILABLE", retry_after=1.0)
            found[tp] = one.offset
        return found


@asynccontextmanager
async def _translate_errors(group: str) -> AsyncIterator[None]:
    """What is the caller's to change, as that; the rest as Kafka's errors are."""
    try:
        yield
    except GroupInUse as error:
        raise StatusError(409, str(error), code="GROUP_IN_USE") from error
    except GroupFailed as error:
        if error.code != GROUP_ID_NOT_FOUND:
            raise
        what = f"there is no group {group}; GET /adm/groups lists them"
        raise StatusError(404, what, code="UNKNOWN_GROUP") from error
