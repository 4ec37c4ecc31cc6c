"""List topics, partitions and brokers in the dialect."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.offsets import EARLIEST, LATEST, READ_COMMITTED, OffsetAndTimestamp
from gateway.kafka.protocol.requests import PartitionMetadata
from gateway.kafka.protocol.topic_messages import DescribeConfigsRequest
from gateway.sidecar.component import Component
from gateway.sidecar.consumer.dialect import TrailingSlashRoute
from gateway.sidecar.context import Context
from gateway.sidecar.http.middleware import READ_SCOPE
from gateway.sidecar.topics import describe_topic

from .dialect import CONFLUENT, create_endpoint, parse_partition


class Topics(Component):
    def __init__(self, context: Context) -> None:
        self._context = context
        partition_path = "/topics/{topic}/partitions/{partition}"
        self.routes = [
            TrailingSlashRoute("/topics", create_endpoint(self._list_topics), "GET"),
            TrailingSlashRoute("/topics/{topic}", create_endpoint(self._get_topic), "GET"),
            TrailingSlashRoute(
                "/topics/{topic}/partitions", create_endpoint(self._list_partitions), "GET"
            ),
            TrailingSlashRoute(partition_path, create_endpoint(self._get_partition), "GET"),
            TrailingSlashRoute(
                f"{partition_path}/offsets", create_endpoint(self._get_offsets), "GET"
            ),
            TrailingSlashRoute("/brokers", create_endpoint(self._list_brokers), "GET"),
        ]

    async def _list_topics(self, request: Request) -> Response:
        """Answer with all topics but Kafka's internal ones, as Java's clients list them."""
        await self._context.authorize(request, READ_SCOPE)
        self._context.require_kafka()
        names = await self._context.cluster.list_topics()
        return CONFLUENT.build_response(request, sorted(name for name in names if name[:2] != "__"))

    async def _get_topic(self, request: Request) -> Response:
        name = request.path_params["topic"]
        await self._context.authorize(request, READ_SCOPE, [name])
        topic = await describe_topic(self._context, name)
        description = {
            "name": name,
            "configs": await self._describe_configs(name),
            "partitions": _format_partitions(topic.partitions),
        }
        return CONFLUENT.build_response(request, description)

    async def _list_partitions(self, request: Request) -> Response:
        name = request.path_params["topic"]
        await self._context.authorize(request, READ_SCOPE, [name])
        topic = await describe_topic(self._context, name)
        return CONFLUENT.build_response(request, _format_partitions(topic.partitions))

    async def _get_partition(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE, [request.path_params["topic"]])
        tp = await parse_partition(self._context, request)
        topic = await describe_topic(self._context, tp.topic)
        return CONFLUENT.build_response(
            request, _format_partition(tp.partition, topic.partitions[tp.partition])
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
        """Return the configuration of a topic; nothing while no broker has answered yet."""
        cluster = self._context.cluster
        node = cluster.metadata.last_responder  # any broker knows the configs of topics
        if node is None:
            return {}
        request = DescribeConfigsRequest(topic, None)
        return (await cluster.connections.send(node, ConnectionRole.CONTROL, request)).values


async def fetch_bounds(
    context: Context, tp: TopicPartition, isolation: int = READ_COMMITTED
) -> tuple[int, int]:
    """Return the first offset of a partition, and the offset after the last one that may be read.

    Raises BrokerUnavailable if Kafka does not say, or as `Context.get_topic`.
    """
    await context.get_topic(tp.topic)
    bounds: list[int] = []
    for spec in (EARLIEST, LATEST):
        answer = (await context.cluster.list_offsets({tp: spec}, isolation))[tp]
        if not isinstance(answer, OffsetAndTimestamp):
            problem = f"{tp} does not say where it begins and ends (code {answer}); try again"
            raise BrokerUnavailable(problem, retry_after=1.0)
        bounds.append(answer.offset)
    return bounds[0], bounds[1]


def _format_partitions(partitions: dict[int, PartitionMetadata]) -> list[dict[str, Any]]:
    return [_format_partition(number, partitions[number]) for number in sorted(partitions)]


def _format_partition(number: int, partition: PartitionMetadata) -> dict[str, Any]:
    replicas = [
        {"broker": node, "leader": node == partition.leader, "in_sync": node in partition.isr}
        for node in partition.replicas
    ]
    return {"partition": number, "leader": partition.leader, "replicas": replicas}
