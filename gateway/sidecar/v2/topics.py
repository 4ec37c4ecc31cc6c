"""What there is in Kafka, in the dialect: topics, their partitions, brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.offsets import EARLIEST, LATEST, READ_COMMITTED, OffsetAndTimestamp
from gateway.kafka.protocol.config_messages import DescribeConfigsRequest
from gateway.kafka.protocol.requests import PartitionMetadata
from gateway.sidecar.consumer.dialect import TrailingSlashRoute
from gateway.sidecar.context import Context
from gateway.sidecar.http.authorization import READ_SCOPE
from gateway.sidecar.topics import describe_topic

from .dialect import CONFLUENT
from .endpoints import create_endpoint, parse_partition


class Topics:
    """The part; see the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        one = "/topics/{topic}/partitions/{partition}"
        self.routes: Sequence[BaseRoute] = [
            TrailingSlashRoute("/topics", create_endpoint(self._list_topics), "GET"),
            TrailingSlashRoute("/topics/{topic}", create_endpoint(self._get_topic), "GET"),
            TrailingSlashRoute(
                "/topics/{topic}/partitions", create_endpoint(self._list_partitions), "GET"
            ),
            TrailingSlashRoute(one, create_endpoint(self._get_partition), "GET"),
            TrailingSlashRoute(f"{one}/offsets", create_endpoint(self._get_offsets), "GET"),
            TrailingSlashRoute("/brokers", create_endpoint(self._list_brokers), "GET"),
        ]

    async def run(self) -> None:
        """Nothing runs beside it."""

    async def check_ready(self) -> None:
        """Kafka is checked for all parts."""

    async def _list_topics(self, request: Request) -> Response:
        """Without Kafka's own, as Java's clients list them."""
        await self._context.authorize(request, READ_SCOPE)
        self._context.require_kafka()
        names = await self._context.cluster.list_topics()
        return CONFLUENT.build_response(request, sorted(each for each in names if each[:2] != "__"))

    async def _get_topic(self, request: Request) -> Response:
        name = request.path_params["topic"]
        await self._context.authorize(request, READ_SCOPE, [name])
        known = await describe_topic(self._context, name)
        told = {
            "name": name,
            "configs": await self._describe_configs(name),
            "partitions": _format_partitions(known.partitions),
        }
        return CONFLUENT.build_response(request, told)

    async def _list_partitions(self, request: Request) -> Response:
        name = request.path_params["topic"]
        await self._context.authorize(request, READ_SCOPE, [name])
        known = await describe_topic(self._context, name)
        return CONFLUENT.build_response(request, _format_partitions(known.partitions))

    async def _get_partition(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE, [request.path_params["topic"]])
        tp = await parse_partition(self._context, request)
        known = await describe_topic(self._context, tp.topic)
        return CONFLUENT.build_response(
            request, _format_partition(tp.partition, known.partitions[tp.partition])
        )

    async def _get_offsets(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE, [request.path_params["topic"]])
        tp = await parse_partition(self._context, request)
        first, last = await fetch_bounds(self._context, tp)
        return CONFLUENT.build_response(request, {"beginning_offset": first, "end_offset": last})

    async def _list_brokers(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        self._context.require_kafka()
        return CONFLUENT.build_response(
            request, {"brokers": sorted(self._context.cluster.metadata.brokers)}
        )

    async def _describe_configs(self, topic: str) -> dict[str, str | None]:
        """None where they may not be described."""
        cluster = self._context.cluster
        node = cluster.metadata.last_responder
        if node is None:
            return {}
        request = DescribeConfigsRequest(topic, None)
        return (await cluster.connections.send(node, ConnectionRole.CONTROL, request)).values


async def fetch_bounds(
    context: Context, tp: TopicPartition, isolation: int = READ_COMMITTED
) -> tuple[int, int]:
    """Where a partition begins, and where what may be read of it ends. Raises BrokerUnavailable,
    and as `Context.topic`."""
    await context.get_topic(tp.topic)
    found: list[int] = []
    for spec in (EARLIEST, LATEST):
        answer = (await context.cluster.list_offsets({tp: spec}, isolation))[tp]
        if not isinstance(answer, OffsetAndTimestamp):
            what = f"{tp} does not say where it begins and ends (code {answer}); try again"
            raise BrokerUnavailable(what, retry_after=1.0)
        found.append(answer.offset)
    return found[0], found[1]


def _format_partitions(partitions: dict[int, PartitionMetadata]) -> list[dict[str, Any]]:
    return [_format_partition(number, partitions[number]) for number in sorted(partitions)]


def _format_partition(number: int, known: PartitionMetadata) -> dict[str, Any]:
    replicas = [
        {"broker": node, "leader": node == known.leader, "in_sync": node in known.isr}
        for node in known.replicas
    ]
    return {"partition": number, "leader": known.leader, "replicas": replicas}
