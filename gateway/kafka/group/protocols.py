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
from gateway.core.group.member import Ask, Membership
from gateway.errors import GroupFailed
from gateway.kafka.protocol import classic_messages, group_messages
from gateway.kafka.protocol.group_messages import HeartbeatRequest
from gateway.kafka.protocol.requests import Request

Name = Literal["auto", "consumer", "classic"]
UNSUPPORTED_VERSION = 35
HEARTBEAT = 3.0  # seconds, or a third of the session timeout; as Java's consumer

_REQUESTS: Mapping[type[Ask], Callable[[Any], Request[Any]]] = {
    **group_messages.REQUESTS,
    **classic_messages.REQUESTS,
}


@dataclass(frozen=True, slots=True)
class Protocols:
    """What a member is made with. Times in seconds.

    heartbeat_interval: the longest; with KIP-848 the broker may want it shorter. None: the
                        protocol's own. session_timeout: with KIP-848 it is the broker's.
    """

    name: Name = "auto"
    instance_id: str | None = None
    session_timeout: float = 45.0
    heartbeat_interval: float | None = None
    rebalance_timeout: float = 60.0

    def member(self, group: str, versions: Mapping[int, tuple[int, int]]) -> Membership:
        """For a coordinator that speaks these apis. Raises GroupFailed where it cannot."""
        speaks = HeartbeatRequest.API in versions
        if self.name == "classic" or (self.name == "auto" and not speaks):
            return ClassicMember(
                group,
                session_timeout=self.session_timeout,
                rebalance_timeout=self.rebalance_timeout,
                interval=self.heartbeat_interval or min(HEARTBEAT, self.session_timeout / 3),
                random=random.random,
                instance_id=self.instance_id,
            )
        if speaks:
            return ConsumerMember(
                group,
                _member_id(),
                self.rebalance_timeout,
                random.random,
                instance_id=self.instance_id,
                interval=self.heartbeat_interval or inf,
            )
        raise GroupFailed(
            f"the coordinator of {group} does not speak KIP-848; use the classic protocol",
            group=group,
            code=UNSUPPORTED_VERSION,
        )


def carried(ask: Ask) -> Request[Any]:
    """The request of an ask; its answer is the core's."""
    return _REQUESTS[type(ask)](ask)


def _member_id() -> str:
    """As Kafka writes UUIDs."""
    return urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
