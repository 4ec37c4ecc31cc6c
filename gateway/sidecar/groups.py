"""Let operators see consumer groups, their lag, and move their offsets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.core.log.record import TopicPartition
from gateway.errors import GroupInUse, UnknownGroup
from gateway.kafka import admin as group_admin
from gateway.kafka.client.offsets import EARLIEST, LATEST, READ_UNCOMMITTED, OffsetAndTimestamp
from gateway.sidecar.http.spec import create_invalid_request
from gateway.sidecar.http.status import StatusError, build_json_response

from .context import Context
from .lookups import check_offsets, parse_tp

MAX_BODY_BYTES = 1 << 20
OFFSET_SPECS: Mapping[str, int] = {"earliest": EARLIEST, "latest": LATEST}


class GroupEndpoints:
    """Serve the paths below /adm/groups. The admin component creates it and authorizes."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def list_groups(self, request: Request) -> Response:
        """Answer with all groups of the cluster, of both group protocols."""
        self._context.require_kafka()
        groups = await group_admin.list_groups(self._context.cluster)
        return build_json_response(
            [{"group": group.name, "type": group.type, "state": group.state} for group in groups]
        )

    async def get_lag(self, request: Request) -> Response:
        self._context.require_kafka()
        group = request.path_params["group"]
        async with _translate_errors(group):
            lags = await group_admin.fetch_lag(self._context.cluster, group)
        partitions = [{**tp._asdict(), **lag.to_json()} for tp, lag in sorted(lags.items())]
        total = sum(lag.lag or 0 for lag in lags.values())
        return build_json_response({"group": group, "lag": total, "partitions": partitions})

    async def seek(self, request: Request) -> Response:
        body = await self._context.spec["seekGroup"].read_body(request, MAX_BODY_BYTES)
        self._context.require_kafka()
        group, offsets = request.path_params["group"], await self._resolve_offsets(body["offsets"])
        async with _translate_errors(group):
            await group_admin.set_offsets(self._context.cluster, group, offsets)
        entries = [{**tp._asdict(), "offset": offset} for tp, offset in offsets.items()]
        return build_json_response({"group": group, "offsets": entries})

    async def _resolve_offsets(
        self, entries: Sequence[Mapping[str, Any]]
    ) -> dict[TopicPartition, int]:
        """Return the offsets that the entries of a request name; raises StatusError 400."""
        offsets: dict[TopicPartition, int] = {}
        specs: dict[TopicPartition, int] = {}
        for index, entry in enumerate(entries):
            tp = parse_tp(entry)
            topic = await self._context.get_topic(tp.topic)
            if tp.partition not in topic.partitions:
                problem = f"topic {tp.topic} has 0 to {len(topic.partitions) - 1}"
                raise create_invalid_request(f"offsets[{index}].partition", problem)
            if tp in offsets or tp in specs:
                raise create_invalid_request(
                    f"offsets[{index}]", f"{tp} is there twice; give it once"
                )
            if "offset" in entry:
                offsets[tp] = entry["offset"]
            else:  # all others are looked up together, by timestamp or by -2 and -1
                specs[tp] = entry.get(
                    "timestamp", OFFSET_SPECS.get(entry.get("position", ""), LATEST)
                )
        await check_offsets(self._context, offsets)
        found = await self._list_offsets(specs)
        # Kafka answers -1 where no record is that late: the end is meant.
        past_end = [tp for tp, offset in found.items() if offset < 0]
        return offsets | found | await self._list_offsets(dict.fromkeys(past_end, LATEST))

    async def _list_offsets(self, specs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        cluster, offsets = self._context.cluster, dict[TopicPartition, int]()
        listed = await cluster.list_offsets(specs, READ_UNCOMMITTED) if specs else {}
        for tp in specs:
            answer = listed.get(tp)
            if not isinstance(answer, OffsetAndTimestamp):
                problem = f"the offsets of {tp} are not known now; try again"
                raise StatusError(503, problem, code="KAFKA_UNAVAILABLE", retry_after=1.0)
            offsets[tp] = answer.offset
        return offsets


@asynccontextmanager
async def _translate_errors(group: str) -> AsyncIterator[None]:
    """Turn errors that the caller can correct into a 4xx; others stay Kafka's."""
    try:
        yield
    except GroupInUse as error:
        raise StatusError(409, str(error), code="GROUP_IN_USE") from error
    except UnknownGroup as error:
        problem = f"there is no group {group}; GET /adm/groups lists them"
        raise StatusError(404, problem, code="UNKNOWN_GROUP") from error
