"""Whether a cluster is there and lets the gateway do what its configuration needs.

Every server of the configuration and every broker that they name is connected to, as the gateway
would. What may be read and written is what the brokers say (KIP-430); where they do not, a fetch
from far beyond the end says whether reading is allowed: nothing is read by it, and nothing is
written by any of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from gateway.config import Kafka
from gateway.core.log.record import TopicPartition
from gateway.errors import KafkaError
from gateway.kafka.client.cluster import ClusterSettings, parse_address
from gateway.kafka.client.connections import ConnectionRole, Connections
from gateway.kafka.client.metadata import UNKNOWN_TOPIC_OR_PARTITION
from gateway.kafka.client.metadata_changes import TOPIC_AUTHORIZATION_FAILED
from gateway.kafka.fetch.fetch import FetchTarget as Wanted
from gateway.kafka.fetch.fetch import fetch
from gateway.kafka.protocol.requests import (
    BrokerMetadata,
    MetadataRequest,
    MetadataResponse,
    TopicMetadata,
    TopicOperation,
)

from .finding import CheckProgress, Finding, failure, ok, warning
from .requirements import TopicPattern, TopicRequirement, check_pattern, check_topic

BROKER_TIMEOUT_S = 10.0  # seconds for a broker to be connected to and to answer
_OFFSET_BEYOND_END = 1 << 62  # an offset that no log has
_READABLE_ERROR_CODES = frozenset(
    {0, 1}
)  # no error, and out of range: both only where reading is allowed


class ServerCheck(NamedTuple):
    """Of a server. name: as messages have it. said: None where it failed, with `why`."""

    name: str
    address: tuple[str, int]
    metadata: MetadataResponse | None
    failure: str = ""


async def check_brokers(
    kafka: Kafka,
    requirements: Sequence[TopicRequirement],
    patterns: Sequence[TopicPattern],
    steps: CheckProgress,
) -> list[Finding]:
    """What was found, in the order of servers, brokers, topics."""
    if kafka.servers == "embedded":
        return [ok("servers embedded", "made when the gateway starts, with its topics")]
    trial = _ClusterCheck(kafka, steps)
    try:
        return await trial.run(requirements, patterns)
    finally:
        await trial.connections.close()


class _ClusterCheck:
    def __init__(self, kafka: Kafka, steps: CheckProgress) -> None:
        made = ClusterSettings.from_config(kafka)
        self.connections = Connections(
            client_id=made.client_id,
            credentials=made.credentials,
            request_timeout=min(made.request_timeout, BROKER_TIMEOUT_S),
        )
        self._servers = [parse_address(server) for server in made.servers]
        self._steps = steps

    async def run(
        self, requirements: Sequence[TopicRequirement], patterns: Sequence[TopicPattern]
    ) -> list[Finding]:
        names = [want.name for want in requirements]
        answers = await asyncio.gather(
            *(self._check_server(-1 - n, at, names) for n, at in enumerate(self._servers))
        )
        good = [answer.metadata for answer in answers if answer.metadata is not None]
        if not good:
            reason = "nothing else of Kafka was tried: no server answered"
            return [
                *(failure(each.name, each.failure) for each in answers),
                warning("topics", reason),
            ]
        known = {broker.node: broker for said in good for broker in said.brokers}
        found, topics = await asyncio.gather(
            self._check_brokers(known.values()), self._check_topics(requirements, patterns, good)
        )
        return [*_report_servers(answers, known.values()), *found, *topics]

    async def _check_server(
        self, node: int, server: tuple[str, int], topics: Sequence[str]
    ) -> ServerCheck:
        """A server of the configuration (node below 0), or a broker; with what it says of the
        topics."""
        where = f"{server[0]}:{server[1]}"
        name = f"server {where}" if node < 0 else f"broker {node} at {where}"
        self.connections.update_addresses({node: server})
        with self._steps.track(name):
            try:
                async with asyncio.timeout(BROKER_TIMEOUT_S):
                    said = await self._send_metadata_request(
                        node, MetadataRequest(topics, include_operations=True)
                    )
            except TimeoutError:
                return ServerCheck(
                    name, server, None, f"gave no answer within {BROKER_TIMEOUT_S:g} s"
                )
            except KafkaError as exc:
                told = str(exc).removeprefix("the bootstrap server at ").removeprefix(where)
                return ServerCheck(name, server, None, told.removeprefix(name).strip())
        if not said.brokers:
            return ServerCheck(
                name, server, None, "knows no brokers yet: it is starting; try again"
            )
        return ServerCheck(name, server, said)

    async def _send_metadata_request(self, node: int, request: MetadataRequest) -> MetadataResponse:
        return await self.connections.send(node, ConnectionRole.CONTROL, request)

    async def _check_brokers(self, known: Iterable[BrokerMetadata]) -> list[Finding]:
        listed = sorted(known, key=lambda broker: broker.node)
        answers = await asyncio.gather(
            *(self._check_server(each.node, (each.host, each.port), ()) for each in listed)
        )
        return [_report_broker(answer) for answer in answers]

    async def _check_topics(
        self,
        requirements: Sequence[TopicRequirement],
        patterns: Sequence[TopicPattern],
        responses: Sequence[MetadataResponse],
    ) -> list[Finding]:
        told = {want.name: _find_topic(want.name, responses) for want in requirements}
        missing = any(answer is None for answer in told.values())
        every = await self._fetch_all_topics() if missing or patterns else {}
        readable = await asyncio.gather(*(self._can_read(told[want.name]) for want in requirements))
        found = [
            finding
            for want, reads in zip(requirements, readable, strict=True)
            for finding in check_topic(want, told[want.name], reads, every.keys())
        ]
        return [*found, *(check_pattern(pattern, every) for pattern in patterns)]

    async def _fetch_all_topics(self) -> Mapping[str, TopicMetadata]:
        """Every topic that may be described; none if nobody says so."""
        with self._steps.track("all topics"):
            for node in (-1 - n for n in range(len(self._servers))):
                try:
                    async with asyncio.timeout(BROKER_TIMEOUT_S):
                        return (
                            await self._send_metadata_request(
                                node, MetadataRequest(None, include_operations=True)
                            )
                        ).topics
                except (KafkaError, TimeoutError):
                    continue
        return {}

    async def _can_read(self, topic: TopicMetadata | None) -> bool | None:
        """None if neither the brokers say so nor a fetch."""
        if topic is None or topic.error or topic.authorized_operations is not None:
            return None if topic is None else topic.is_allowed(TopicOperation.READ)
        leaders = {
            one.leader: number for number, one in topic.partitions.items() if one.leader >= 0
        }
        with self._steps.track(f"reading {topic.name}"):
            for leader, number in leaders.items():
                code = await self._probe_fetch(
                    leader, TopicPartition(topic.name, number), topic.topic_id
                )
                if code == TOPIC_AUTHORIZATION_FAILED or code in _READABLE_ERROR_CODES:
                    return code in _READABLE_ERROR_CODES
        return None

    async def _probe_fetch(
        self, node: int, tp: TopicPartition, topic_id: UUID | None
    ) -> int | None:
        """The code that a fetch which can bring nothing is answered with."""
        wanted = {tp: Wanted(_OFFSET_BEYOND_END, topic_id=topic_id)}
        try:
            async with asyncio.timeout(BROKER_TIMEOUT_S):
                got = await fetch(
                    self.connections, node, ConnectionRole.CATCHUP, wanted, max_wait=0.0
                )
        except (KafkaError, TimeoutError):
            return None
        return got[tp].error_code


def _find_topic(name: str, responses: Iterable[MetadataResponse]) -> TopicMetadata | None:
    """Of those who know it: brokers hear of new topics one after the other."""
    for said in responses:
        topic = said.topics.get(name)
        if topic is not None and topic.error != UNKNOWN_TOPIC_OR_PARTITION:
            return topic
    return None


def _report_servers(
    checks: Sequence[ServerCheck], known: Collection[BrokerMetadata]
) -> list[Finding]:
    """Those that are brokers by the same name are told as these."""
    found: list[Finding] = []
    brokers = {(broker.host, broker.port) for broker in known}
    clusters = {answer.metadata.cluster_id for answer in checks if answer.metadata is not None}
    for answer in checks:
        if answer.address in brokers:
            continue
        if answer.metadata is None:
            found.append(warning(answer.name, f"{answer.failure}; others answer"))
        else:
            count = len(answer.metadata.brokers)
            found.append(ok(answer.name, f"names {count} broker{'s' * (count > 1)}"))
    if len(clusters) > 1:
        what = f"they are of {len(clusters)} clusters ({', '.join(sorted(map(str, clusters)))})"
        found.append(failure("servers", f"{what}; list those of one"))
    return found


def _report_broker(check: ServerCheck) -> Finding:
    if check.metadata is None:
        hint = "clients are sent to this address (advertised.listeners of the broker)"
        return failure(check.name, f"{check.failure}; {hint}")
    return ok(check.name, "answers")
