"""Check that a cluster can be reached and allows what a configuration needs.

The checks connect to every configured server, and to every broker that these name. Brokers say
which operations they allow (KIP-430). If one does not, a fetch from an offset far beyond the end
shows whether reading is allowed, without reading a record. No check writes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from gateway.cli.output import format_count
from gateway.config import Kafka
from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.errors import KafkaError
from gateway.kafka.client.cluster import ClusterSettings, FetchLimits, fetch, parse_address
from gateway.kafka.client.connections import ConnectionRole, Connections
from gateway.kafka.protocol.fetch_messages import FetchTarget
from gateway.kafka.protocol.requests import (
    BrokerMetadata,
    MetadataRequest,
    MetadataResponse,
    TopicMetadata,
    TopicOperation,
)

from .finding import CheckProgress, Finding, failure, ok, warning
from .requirements import TopicPattern, TopicRequirement, check_pattern, check_topic

BROKER_TIMEOUT_S = 10.0  # seconds to connect to a broker and get a response
_OFFSET_BEYOND_END = 1 << 62  # an offset that no log has
# What a broker answers only after authorization.
_READABLE_ERROR_CODES = frozenset({ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE})


class ServerCheck(NamedTuple):
    name: str
    address: tuple[str, int]
    metadata: MetadataResponse | None
    failure: str = ""


async def check_brokers(
    name: str,
    kafka: Kafka,
    requirements: Sequence[TopicRequirement],
    patterns: Sequence[TopicPattern],
    steps: CheckProgress,
) -> list[Finding]:
    if kafka.servers == "embedded":
        return [ok("servers embedded", "created when the gateway starts, with its topics")]
    check = _ClusterCheck(name, kafka, steps)
    try:
        return await check.run(requirements, patterns)
    finally:
        await check.connections.close()


class _ClusterCheck:
    def __init__(self, name: str, kafka: Kafka, steps: CheckProgress) -> None:
        settings = ClusterSettings.from_config(kafka, name=name)
        self.connections = Connections(
            client_id=settings.client_id,
            credentials=settings.credentials,
            request_timeout=min(settings.request_timeout, BROKER_TIMEOUT_S),
        )
        self._servers = [parse_address(server) for server in settings.servers]
        self._steps = steps

    async def run(
        self, requirements: Sequence[TopicRequirement], patterns: Sequence[TopicPattern]
    ) -> list[Finding]:
        names = [requirement.name for requirement in requirements]
        checks = await asyncio.gather(
            *(
                # Servers have no broker ids yet: numbers below 0 stand for them.
                self._check_server(-1 - n, address, names)
                for n, address in enumerate(self._servers)
            )
        )
        responses = [check.metadata for check in checks if check.metadata is not None]
        if not responses:
            reason = "nothing else of Kafka was checked, because no server answered"
            return [
                *(failure(check.name, check.failure) for check in checks),
                warning("topics", reason),
            ]
        brokers = {broker.node: broker for response in responses for broker in response.brokers}
        broker_findings, topic_findings = await asyncio.gather(
            self._check_brokers(brokers.values()),
            self._check_topics(requirements, patterns, responses),
        )
        return [*_report_servers(checks, brokers.values()), *broker_findings, *topic_findings]

    async def _check_server(
        self, node: int, server: tuple[str, int], topics: Sequence[str]
    ) -> ServerCheck:
        """Ask a server for the metadata of topics; `node` is below 0 for a configured server."""
        where = f"{server[0]}:{server[1]}"
        name = f"server {where}" if node < 0 else f"broker {node} at {where}"
        self.connections.update_addresses({node: server})
        with self._steps.track(name):
            try:
                async with asyncio.timeout(BROKER_TIMEOUT_S):
                    response = await self._request_metadata(node, topics)
            except TimeoutError:
                reason = f"gave no answer within {BROKER_TIMEOUT_S:g} s"
            except KafkaError as exc:
                # The finding's subject names the server already.
                subject = self.connections.describe_broker(node)
                reason = str(exc).removeprefix(subject).strip()
            else:
                if response.brokers:
                    return ServerCheck(name, server, response)
                reason = "knows no brokers yet: it is starting; try again"
        return ServerCheck(name, server, None, reason)

    async def _request_metadata(self, node: int, topics: Sequence[str] | None) -> MetadataResponse:
        request = MetadataRequest(topics, include_operations=True)
        return await self.connections.send(node, ConnectionRole.CONTROL, request)

    async def _check_brokers(self, brokers: Iterable[BrokerMetadata]) -> list[Finding]:
        by_id = sorted(brokers, key=lambda broker: broker.node)
        checks = await asyncio.gather(
            *(self._check_server(each.node, (each.host, each.port), ()) for each in by_id)
        )
        return [
            failure(check.name, check.failure)
            if check.metadata is None
            else ok(check.name, "answers")
            for check in checks
        ]

    async def _check_topics(
        self,
        requirements: Sequence[TopicRequirement],
        patterns: Sequence[TopicPattern],
        responses: Sequence[MetadataResponse],
    ) -> list[Finding]:
        topics = [_find_topic(requirement.name, responses) for requirement in requirements]
        # All topics are fetched for patterns, and to suggest the right name of a missing topic.
        all_topics = await self._fetch_all_topics() if None in topics or patterns else {}
        readable = await asyncio.gather(*map(self._can_read, topics))
        findings = [
            finding
            for requirement, topic, can_read in zip(requirements, topics, readable, strict=True)
            for finding in check_topic(requirement, topic, can_read, all_topics.keys())
        ]
        return [*findings, *(check_pattern(pattern, all_topics) for pattern in patterns)]

    async def _fetch_all_topics(self) -> Mapping[str, TopicMetadata]:
        with self._steps.track("all topics"):
            for node in (-1 - n for n in range(len(self._servers))):
                with suppress(KafkaError, TimeoutError):
                    async with asyncio.timeout(BROKER_TIMEOUT_S):
                        return (await self._request_metadata(node, None)).topics
        return {}

    async def _can_read(self, topic: TopicMetadata | None) -> bool | None:
        """Return whether a topic may be read; None if neither the brokers nor a fetch show it."""
        if topic is None or topic.error or topic.authorized_operations is not None:
            return None if topic is None else topic.is_allowed(TopicOperation.READ)
        # One partition of each leader; the first leader that answers decides.
        leaders = {
            partition.leader: number
            for number, partition in topic.partitions.items()
            if partition.leader >= 0
        }
        with self._steps.track(f"reading {topic.name}"):
            for leader, number in leaders.items():
                code = await self._probe_fetch(
                    leader, TopicPartition(topic.name, number), topic.topic_id
                )
                if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED or code in _READABLE_ERROR_CODES:
                    return code in _READABLE_ERROR_CODES
        return None

    async def _probe_fetch(
        self, node: int, tp: TopicPartition, topic_id: UUID | None
    ) -> int | None:
        targets = {tp: FetchTarget(_OFFSET_BEYOND_END, topic_id=topic_id)}
        with suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(BROKER_TIMEOUT_S):
                connection = await self.connections.connect(node, ConnectionRole.CATCHUP)
                limits = FetchLimits(max_wait=0.0)
                responses = await fetch(self.connections, connection, targets, limits)
                return responses[tp].error_code
        return None


def _find_topic(name: str, responses: Iterable[MetadataResponse]) -> TopicMetadata | None:
    """Return a topic from the first response that has it, as brokers learn of it one by one."""
    for response in responses:
        topic = response.topics.get(name)
        if topic is not None and topic.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return topic
    return None


def _report_servers(
    checks: Sequence[ServerCheck], brokers: Collection[BrokerMetadata]
) -> list[Finding]:
    """Report the configured servers, except the brokers, which `_check_brokers` reports."""
    findings: list[Finding] = []
    addresses = {(broker.host, broker.port) for broker in brokers}
    clusters = {check.metadata.cluster_id for check in checks if check.metadata is not None}
    for check in checks:
        if check.address in addresses:
            continue
        if check.metadata is None:
            findings.append(warning(check.name, f"{check.failure}; other servers answer"))
        else:
            count = format_count(len(check.metadata.brokers), "broker")
            findings.append(ok(check.name, f"names {count}"))
    if len(clusters) > 1:
        what = f"they belong to {len(clusters)} clusters"
        ids = ", ".join(sorted(map(str, clusters)))
        findings.append(failure("servers", f"{what} ({ids}); list the servers of one cluster"))
    return findings
