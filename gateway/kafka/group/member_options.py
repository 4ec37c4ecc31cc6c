"""Which of the two group protocols a member speaks, and the requests of both.

`auto` takes KIP-848 where the coordinator has it (api 68, Kafka 4.0), else the classic one.
"""

from __future__ import annotations

import random
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from gateway.core.group.classic_member import ClassicMember
from gateway.core.group.consumer_member import ConsumerMember
from gateway.core.group.member import GroupMembership, GroupRequest
from gateway.errors import GroupFailed
from gateway.kafka.protocol import classic_messages, group_messages
from gateway.kafka.protocol.group_messages import ConsumerGroupHeartbeatRequest
from gateway.kafka.protocol.requests import KafkaRequest

ProtocolName = Literal["auto", "consumer", "classic"]
UNSUPPORTED_VERSION = 35
MAX_HEARTBEAT_INTERVAL_S = 3.0  # seconds, or a third of the session timeout; as Java's consumer

_REQUEST_TYPES: Mapping[type[GroupRequest], Callable[[Any], KafkaRequest[Any]]] = {
    **group_messages.REQUEST_CLASSES,
    **classic_messages.REQUEST_CLASSES,
}


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """What a member is made with. Times in seconds.

    heartbeat_interval: the longest; with KIP-848 the broker may want it shorter. None: the
                        protocol's own. session_timeout: with KIP-848 it is the broker's.
    """

    protocol: ProtocolName = "auto"
    instance_id: str | None = None
    session_timeout: float = 45.0
    heartbeat_interval: float | None = None
    rebalance_timeout: float = 60.0

    def create_member(self, group: str, versions: Mapping[int, tuple[int, int]]) -> GroupMembership:
        """For a coordinator that speaks these apis. Raises GroupFailed where it cannot."""
        speaks = ConsumerGroupHeartbeatRequest.API_KEY in versions
        if self.protocol == "classic" or (self.protocol == "auto" and not speaks):
            return ClassicMember(
                group,
                session_timeout=self.session_timeout,
                rebalance_timeout=self.rebalance_timeout,
                heartbeat_interval=self.heartbeat_interval
                or min(MAX_HEARTBEAT_INTERVAL_S, self.session_timeout / 3),
                random=random.random,
                instance_id=self.instance_id,
            )
        if speaks:
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
            code=UNSUPPORTED_VERSION,
        )


def build_request(message: GroupRequest) -> KafkaRequest[Any]:
    """The request of an ask; its answer is the core's."""
    return _REQUEST_TYPES[type(message)](message)


def _generate_member_id() -> str:
    """As Kafka writes UUIDs."""
    return urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
