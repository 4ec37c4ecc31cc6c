"""Describe how a consumer joins a group and reads, and choose the group protocol it speaks.

`auto` takes KIP-848 if the coordinator has it (API key 68 in version 1, Kafka 4.0), else the
classic protocol. Kafka 3.7 to 3.9 offer version 0, and refuse it unless a preview is switched on.
"""

from __future__ import annotations

import random
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, TypeAlias

from gateway.core.error_code import ErrorCode
from gateway.core.group.classic_member import ClassicMember
from gateway.core.group.consumer_member import ConsumerMember
from gateway.core.group.member import GroupRequest
from gateway.core.group.partition_state import EARLIEST, LATEST
from gateway.errors import GroupFailed
from gateway.kafka.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from gateway.kafka.protocol.member_messages import REQUEST_CLASSES, ConsumerGroupHeartbeatRequest
from gateway.kafka.protocol.requests import KafkaRequest

GroupMembership: TypeAlias = ClassicMember | ConsumerMember
ProtocolName = Literal["auto", "consumer", "classic"]
OffsetReset = Literal["latest", "earliest", "none"]
Isolation = Literal["read_committed", "read_uncommitted"]
# Of the classic protocol; a third of the session timeout if that is less. As Java's consumer.
MAX_HEARTBEAT_INTERVAL_S = 3.0

_OFFSET_SPECS: Mapping[OffsetReset, int | None] = {
    "latest": LATEST,
    "earliest": EARLIEST,
    "none": None,
}


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer joins its group and reads. Times are in seconds.

    Attributes:
        protocol: `consumer` is KIP-848; `auto` takes it if the coordinator has it.
        instance_id: Makes the member a static one (KIP-345).
        session_timeout: How long a silent member keeps its partitions. With KIP-848 the broker
            decides that instead.
        heartbeat_interval: The longest time between heartbeats; None for the protocol's own. With
            KIP-848 one that is shorter than the broker's makes rebalances faster.
        rebalance_timeout: How long a listener may take to give up revoked partitions.
        auto_offset_reset: Where a group starts in a partition without a committed offset: `latest`,
            `earliest`, or `none`, for which `poll` raises PartitionFailed. The start is committed
            before the first fetch. With `latest` a partition that was added after the group had
            begun is read from its start. If retention has deleted the next offset, reading goes on
            at the first that Kafka has, or without a group where this says. If an unclean election
            has cut the log off, reading goes on at the cut; with `none`, `poll` raises
            PartitionFailed.
        isolation: Whether records of open and aborted transactions are left out.
        max_partition_bytes: The most bytes of one partition in one fetch. Of records fetched ahead
            at most one and a half times as much is kept, as on the wire (one batch always comes).
        max_fetch_bytes: The most bytes of one fetch from one broker.
        prefetch: Fetch the next records while the caller works on the last ones.
        hidden_topics: Topics that no pattern matches, besides Kafka's own (`__...`).
    """

    protocol: ProtocolName = "auto"
    instance_id: str | None = None
    session_timeout: float = 45.0
    heartbeat_interval: float | None = None
    rebalance_timeout: float = 60.0
    auto_offset_reset: OffsetReset = "latest"
    isolation: Isolation = "read_committed"
    max_partition_bytes: int = 1 << 20
    max_fetch_bytes: int = 16 << 20
    prefetch: bool = False
    hidden_topics: frozenset[str] = frozenset()

    def is_visible(self, topic: str) -> bool:
        """Return whether patterns may match a topic."""
        return not topic.startswith("__") and topic not in self.hidden_topics

    @property
    def offset_spec(self) -> int | None:
        return _OFFSET_SPECS[self.auto_offset_reset]

    @property
    def isolation_level(self) -> int:
        return READ_COMMITTED if self.isolation == "read_committed" else READ_UNCOMMITTED

    def create_member(self, group: str, versions: Mapping[int, tuple[int, int]]) -> GroupMembership:
        """Create the state machine of a member; GroupFailed if KIP-848 is required and missing."""
        _, newest = versions.get(ConsumerGroupHeartbeatRequest.API.key, (0, -1))
        has_kip_848 = newest >= (1 if self.protocol == "auto" else 0)
        if self.protocol == "classic" or (self.protocol == "auto" and not has_kip_848):
            return ClassicMember(
                group,
                session_timeout=self.session_timeout,
                rebalance_timeout=self.rebalance_timeout,
                heartbeat_interval=self.heartbeat_interval
                or min(MAX_HEARTBEAT_INTERVAL_S, self.session_timeout / 3),
                random=random.random,
                instance_id=self.instance_id,
            )
        if has_kip_848:
            # A random UUID as Kafka writes them; in KIP-848 the member chooses its id.
            member_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            return ConsumerMember(
                group,
                member_id,
                self.rebalance_timeout,
                random.random,
                instance_id=self.instance_id,
                heartbeat_interval=self.heartbeat_interval or inf,
            )
        raise GroupFailed(
            f"the coordinator of {group} does not speak KIP-848; use the classic protocol",
            group=group,
            code=ErrorCode.UNSUPPORTED_VERSION,
        )


def build_request(message: GroupRequest) -> KafkaRequest[Any]:
    return REQUEST_CLASSES[type(message)](message)
