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
from gateway.kafka.client.cluster import ClusterSettings, address
from gateway.kafka.client.connections import Connections, Role
from gateway.kafka.client.metadata import UNKNOWN_TOPIC
from gateway.kafka.client.metadata_changes import DENIED
from gateway.kafka.fetch.fetch import Want as Wanted
from gateway.kafka.fetch.fetch import fetch
from gateway.kafka.protocol.requests import (
    BrokerAnswer,
    MetadataAnswer,
    MetadataRequest,
    Operation,
    TopicAnswer,
)

from .finding import Finding, Steps, fails, ok, warning
from .wants import Pattern, Want, judge, judge_pattern

PATIENCE = 10.0  # seconds for a broker to be connected to and to answer
_BEYOND = 1 << 62  # an offset that no log has
_READS = frozenset({0, 1})  # no error, and out of range: both only where reading is allowed


class Answer(NamedTuple):
    """Of a server. name: as messages have it. said: None where it failed, with `why`."""

    name: str
    at: tuple[str, int]
    said: MetadataAnswer | None
    why: str = ""


async def brokers(
    kafka: Kafka, wants: Sequence[Want], patterns: Sequence[Pattern], steps: Steps
) -> list[Finding]:
    """What was found, in the order of servers, brokers, topics."""
    if kafka.servers == "embedded":
        return [ok("servers embedded", "made when the gateway starts, with its topics")]
    trial = _Trial(kafka, steps)
    try:
        return await trial.run(wants, patterns)
    finally:
        await trial.connections.close()


class _Trial:
    def __init__(self, kafka: Kafka, steps: Steps) -> None:
        made = ClusterSettings.of(kafka)
        self.connections = Connections(
            client_id=made.client_id,
            credentials=made.credentials,
            request_timeout=min(made.request_timeout, PATIENCE),
        )
        self._servers = [address(server) for server in made.servers]
        self._steps = steps

    async def run(self, wants: Sequence[Want], patterns: Sequence[Pattern]) -> list[Finding]:
        names = [want.name for want in wants]
        answers = await asyncio.gather(
            *(self._ask(-1 - n, at, names) for n, at in enumerate(self._servers))
        )
        good = [answer.said for answer in answers if answer.said is not None]
        if not good:
            reason = "nothing else of Kafka was tried: no server answered"
            return [*(fails(each.name, each.why) for each in answers), warning("topics", reason)]
        known = {broker.node: broker for said in good for broker in said.brokers}
        found, topics = await asyncio.gather(
            self._brokers(known.values()), self._topics(wants, patterns, good)
        )
        return [*_servers(answers, known.values()), *found, *topics]

    async def _ask(self, node: int, at: tuple[str, int], topics: Sequence[str]) -> Answer:
        """A server of the configuration (node below 0), or a broker; with what it says of the
        topics."""
        where = f"{at[0]}:{at[1]}"
        name = f"server {where}" if node < 0 else f"broker {node} at {where}"
        self.connections.know({node: at})
        with self._steps.step(name):
            try:
                async with asyncio.timeout(PATIENCE):
                    said = await self._send(node, MetadataRequest(topics, rights=True))
            except TimeoutError:
                return Answer(name, at, None, f"gave no answer within {PATIENCE:g} s")
            except KafkaError as exc:
                told = str(exc).removeprefix("the bootstrap server at ").removeprefix(where)
                return Answer(name, at, None, told.removeprefix(name).strip())
        if not said.brokers:
            return Answer(name, at, None, "knows no brokers yet: it is starting; try again")
        return Answer(name, at, said)

    async def _send(self, node: int, request: MetadataRequest) -> MetadataAnswer:
        return await self.connections.send(node, Role.CONTROL, request)

    async def _brokers(self, known: Iterable[BrokerAnswer]) -> list[Finding]:
        listed = sorted(known, key=lambda broker: broker.node)
        answers = await asyncio.gather(
            *(self._ask(each.node, (each.host, each.port), ()) for each in listed)
        )
        return [_broker(answer) for answer in answers]

    async def _topics(
        self, wants: Sequence[Want], patterns: Sequence[Pattern], good: Sequence[MetadataAnswer]
    ) -> list[Finding]:
        told = {want.name: _told(want.name, good) for want in wants}
        missing = any(answer is None for answer in told.values())
        every = await self._all() if missing or patterns else {}
        readable = await asyncio.gather(*(self._readable(told[want.name]) for want in wants))
        found = [
            finding
            for want, reads in zip(wants, readable, strict=True)
            for finding in judge(want, told[want.name], reads, every.keys())
        ]
        return [*found, *(judge_pattern(pattern, every) for pattern in patterns)]

    async def _all(self) -> Mapping[str, TopicAnswer]:
        """Every topic that may be described; none if nobody says so."""
        with self._steps.step("all topics"):
            for node in (-1 - n for n in range(len(self._servers))):
                try:
                    async with asyncio.timeout(PATIENCE):
                        return (await self._send(node, MetadataRequest(None, rights=True))).topics
                except (KafkaError, TimeoutError):
                    continue
        return {}

    async def _readable(self, told: TopicAnswer | None) -> bool | None:
        """None if neither the brokers say so nor a fetch."""
        if told is None or told.error or told.operations is not None:
            return None if told is None else told.may(Operation.READ)
        leaders = {one.leader: number for number, one in told.partitions.items() if one.leader >= 0}
        with self._steps.step(f"reading {told.name}"):
            for leader, number in leaders.items():
                code = await self._fetched(leader, TopicPartition(told.name, number), told.topic_id)
                if code == DENIED or code in _READS:
                    return code in _READS
        return None

    async def _fetched(self, node: int, tp: TopicPartition, topic_id: UUID | None) -> int | None:
        """The code that a fetch which can bring nothing is answered with."""
        wanted = {tp: Wanted(_BEYOND, topic_id=topic_id)}
        try:
            async with asyncio.timeout(PATIENCE):
                got = await fetch(self.connections, node, Role.CATCHUP, wanted, max_wait=0.0)
        except (KafkaError, TimeoutError):
            return None
        return got[tp].error_code


def _told(name: str, answers: Iterable[MetadataAnswer]) -> TopicAnswer | None:
    """Of those who know it: brokers hear of new topics one after the other."""
    for said in answers:
        topic = said.topics.get(name)
        if topic is not None and topic.error != UNKNOWN_TOPIC:
            return topic
    return None


def _servers(answers: Sequence[Answer], known: Collection[BrokerAnswer]) -> list[Finding]:
    """Those that are brokers by the same name are told as these."""
    found: list[Finding] = []
    brokers = {(broker.host, broker.port) for broker in known}
    clusters = {answer.said.cluster_id for answer in answers if answer.said is not None}
    for answer in answers:
        if answer.at in brokers:
            continue
        if answer.said is None:
            found.append(warning(answer.name, f"{answer.why}; others answer"))
        else:
            count = len(answer.said.brokers)
            found.append(ok(answer.name, f"names {count} broker{'s' * (count > 1)}"))
    if len(clusters) > 1:
        what = f"they are of {len(clusters)} clusters ({', '.join(sorted(map(str, clusters)))})"
        found.append(fails("servers", f"{what}; list those of one"))
    return found


def _broker(answer: Answer) -> Finding:
    if answer.said is None:
        hint = "clients are sent to this address (advertised.listeners of the broker)"
        return fails(answer.name, f"{answer.why}; {hint}")
    return ok(answer.name, "answers")
