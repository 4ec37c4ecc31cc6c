"""Choose the group protocol that a member speaks, and build the requests of both protocols.

`auto` takes KIP-848 if the coordinator has it (API key 68, Kafka 4.0), else the classic protocol.
"""

from __future__ import annotations

import random
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from gateway.core.error_code import ErrorCode
from gateway.core.group.classic_member import ClassicMember
from gateway.core.group.consumer_member import ConsumerMember
from gateway.core.group.member import GroupMembership, GroupRequest
from gateway.errors import GroupFailed
from gateway.kafka.protocol import classic_messages, group_messages
from gateway.kafka.protocol.group_messages import ConsumerGroupHeartbeatRequest
from gateway.kafka.protocol.requests import KafkaRequest

ProtocolName = Literal["auto", "consumer", "classic"]
# Of the classic protocol; a third of the session timeout if that is less. As Java's consumer.
MAX_HEARTBEAT_INTERVAL_S = 3.0

_REQUEST_TYPES: Mapping[type[GroupRequest], Callable[[Any], KafkaRequest[Any]]] = {
    **group_messages.REQUEST_CLASSES,
    **classic_messages.REQUEST_CLASSES,
}


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """The settings of a group member. Times are in seconds.

    Attributes:
        protocol: `consumer` is KIP-848; `auto` takes it if the coordinator has it.
        instance_id: Makes the member a static one (KIP-345); None for a dynamic one.
        session_timeout: How long a silent member keeps its partitions. With KIP-848 the broker
            decides that instead.
        heartbeat_interval: The longest time between heartbeats; None for the protocol's own. With
            KIP-848 the broker may want a shorter one.
        rebalance_timeout: How long a member may take to give partitions up.
    """

    protocol: ProtocolName = "auto"
    instance_id: str | None = None
    session_timeout: float = 45.0
    heartbeat_interval: float | None = None
    rebalance_timeout: float = 60.0

    def create_member(self, group: str, versions: Mapping[int, tuple[int, int]]) -> GroupMembership:
        """Create the state machine of a member.

        Args:
            group: The name of the group.
            versions: The lowest and highest version of each API key that the coordinator has.

        Raises:
            GroupFailed: KIP-848 is required, and the coordinator does not have it.
        """
        has_kip_848 = ConsumerGroupHeartbeatRequest.API_KEY in versions
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
            return ConsumerMember(
                group,
                _generate_member_id(),
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
    """Return the message that carries a request of the core; its response is one of the core."""
    return _REQUEST_TYPES[type(message)](message)


def _generate_member_id() -> str:
    """Return a random UUID as Kafka writes them; in KIP-848 the member chooses its id."""
    return urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
