"""What there is in Kafka, in the dialect: topics, their partitions, brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable
from gateway.kafka.client.connections import Role
from gateway.kafka.client.offsets import EARLIEST, LATEST, READ_COMMITTED, Offset
from gateway.kafka.protocol.config_messages import DescribeConfigsRequest
from gateway.kafka.protocol.requests import PartitionAnswer
from gateway.sidecar.consumer.dialect import Slashed
from gateway.sidecar.context import Context
from gateway.sidecar.http.scope import READ
from gateway.sidecar.topics import described

from .dialect import CONFLUENT
from .served import asked_partition, spoken


class Topics:
    """The part; see the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        one = "/topics/{topic}/partitions/{partition}"
        self.routes: Sequence[BaseRoute] = [
            Slashed("/topics", spoken(self._topics), "GET"),
            Slashed("/topics/{topic}", spoken(self._topic), "GET"),
            Slashed("/topics/{topic}/partitions", spoken(self._partitions), "GET"),
            Slashed(one, spoken(self._partition), "GET"),
            Slashed(f"{one}/offsets", spoken(self._offsets), "GET"),
            Slashed("/brokers", spoken(self._brokers), "GET"),
        ]

    async def run(self) -> None:
        """Nothing runs beside it."""

    async def check(self) -> None:
        """Kafka is checked for all parts."""

    async def _topics(self, request: Request) -> Response:
        """Without Kafka's own, as Java's clients list them."""
        await self._context.scope(request, READ)
        self._context.reachable()
        names = await self._context.cluster.topics()
        return CONFLUENT.answer(request, sorted(each for each in names if each[:2] != "__"))

    async def _topic(self, request: Request) -> Response:
        name = request.path_params["topic"]
        await self._context.scope(request, READ, [name])
        known = await described(self._context, name)
        told = {
            "name": name,
            "configs": await self._configs(name),
            "partitions": _told(known.partitions),
        }
        return CONFLUENT.answer(request, told)

    async def _partitions(self, request: Request) -> Response:
        name = request.path_params["topic"]
        await self._context.scope(request, READ, [name])
        known = await described(self._context, name)
        return CONFLUENT.answer(request, _told(known.partitions))

    async def _partition(self, request: Request) -> Response:
        await self._context.scope(request, READ, [request.path_params["topic"]])
        tp = await asked_partition(self._context, request)
        known = await described(self._context, tp.topic)
        return CONFLUENT.answer(request, _one(tp.partition, known.partitions[tp.partition]))

    async def _offsets(self, request: Request) -> Response:
        await self._context.scope(request, READ, [request.path_params["topic"]])
        tp = await asked_partition(self._context, request)
        first, last = await bounds(self._context, tp)
        return CONFLUENT.answer(request, {"beginning_offset": first, "end_offset": last})

    async def _brokers(self, request: Request) -> Response:
        await self._context.scope(request, READ)
        self._context.reachable()
        return CONFLUENT.answer(
            request, {"brokers": sorted(self._context.cluster.metadata.brokers)}
        )

    async def _configs(self, topic: str) -> dict[str, str | None]:
        """None where they may not be described."""
        cluster = self._context.cluster
        node = cluster.metadata.answered
        if node is None:
            return {}
        request = DescribeConfigsRequest(topic, None)
        return (await cluster.connections.send(node, Role.CONTROL, request)).values


async def bounds(
    context: Context, tp: TopicPartition, isolation: int = READ_COMMITTED
) -> tuple[int, int]:
    """Where a partition begins, and where what may be read of it ends. Raises BrokerUnavailable,
    and as `Context.topic`."""
    await context.topic(tp.topic)
    found: list[int] = []
    for spec in (EARLIEST, LATEST):
        answer = (await context.cluster.list_offsets({tp: spec}, isolation))[tp]
        if not isinstance(answer, Offset):
            what = f"{tp} does not say where it begins and ends (code {answer}); try again"
            raise BrokerUnavailable(what, retry_after=1.0)
        found.append(answer.offset)
    return found[0], found[1]


def _told(partitions: dict[int, PartitionAnswer]) -> list[dict[str, Any]]:
    return [_one(number, partitions[number]) for number in sorted(partitions)]


def _one(number: int, known: PartitionAnswer) -> dict[str, Any]:
    replicas = [
        {"broker": node, "leader": node == known.leader, "in_sync": node in known.isr}
        for node in known.replicas
    ]
    return {"partition": number, "leader": known.leader, "replicas": replicas}
