from __future__ import annotations

import pytest

from gateway.core.group.assignor import MemberSubscription
from gateway.core.group.member import (
    GroupRequest,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    MemberIdentity,
    SyncRequest,
    SyncResponse,
)
from gateway.core.log.record import TopicPartition
from gateway.kafka.protocol.member_messages import REQUEST_CLASSES
from gateway.kafka.protocol.requests import ErrorResponse

SELF = MemberIdentity("m", 8, "i")
CLAIM = MemberSubscription("m", frozenset({"a"}), generation=7)
GIVEN = frozenset({TopicPartition("a", 2)})
CASES = {
    "join": JoinRequest(
        group="g",
        identity=SELF,
        session_timeout=10,
        rebalance_timeout=60,
        subscription=CLAIM,
        reason="why",
    ),
    "sync": SyncRequest(group="g", identity=SELF, assignment={"m": GIVEN}),
    "heartbeat": HeartbeatRequest(group="g", identity=SELF),
    "leave": LeaveRequest(group="g", identity=SELF._replace(instance_id=None), reason="why"),
}
JOINED = JoinResponse(
    3, 0, 8, "cooperative-sticky", "m", "m", (CLAIM, MemberSubscription("n", frozenset())), False
)
ANSWERS = {
    "join": JOINED,
    "sync": SyncResponse(3, 0, GIVEN),
    "heartbeat": ErrorResponse(3, 27),
    "leave": ErrorResponse(3, 25),
}

# Written by the message classes of kafka-clients 4.3.1: request, answer. The second member of the
# answer to a join has metadata that nobody understands.
JAVA = {
    ("join", 5): (
        "000167000027100000ea6000016d0001690008636f6e73756d6572000000010012636f6f70657261"
        "746976652d737469636b790000001b00030000000100016100000004000000070000000000000007"
        "ffff",
        "000000030000000000080012636f6f70657261746976652d737469636b7900016d00016d00000002"
        "00016d0001690000001b00030000000100016100000004000000070000000000000007ffff00016e"
        "ffff0000000101",
    ),
    ("join", 6): (
        "0267000027100000ea60026d026909636f6e73756d65720213636f6f70657261746976652d737469"
        "636b791c00030000000100016100000004000000070000000000000007ffff0000",
        "0000000300000000000813636f6f70657261746976652d737469636b79026d026d03026d02691c00"
        "030000000100016100000004000000070000000000000007ffff00026e0002010000",
    ),
    ("join", 7): (
        "0267000027100000ea60026d026909636f6e73756d65720213636f6f70657261746976652d737469"
        "636b791c00030000000100016100000004000000070000000000000007ffff0000",
        "0000000300000000000809636f6e73756d657213636f6f70657261746976652d737469636b79026d"
        "026d03026d02691c00030000000100016100000004000000070000000000000007ffff00026e0002"
        "010000",
    ),
    ("join", 8): (
        "0267000027100000ea60026d026909636f6e73756d65720213636f6f70657261746976652d737469"
        "636b791c00030000000100016100000004000000070000000000000007ffff000477687900",
        "0000000300000000000809636f6e73756d657213636f6f70657261746976652d737469636b79026d"
        "026d03026d02691c00030000000100016100000004000000070000000000000007ffff00026e0002"
        "010000",
    ),
    ("join", 9): (
        "0267000027100000ea60026d026909636f6e73756d65720213636f6f70657261746976652d737469"
        "636b791c00030000000100016100000004000000070000000000000007ffff000477687900",
        "0000000300000000000809636f6e73756d657213636f6f70657261746976652d737469636b79026d"
        "01026d03026d02691c00030000000100016100000004000000070000000000000007ffff00026e00"
        "02010000",
    ),
    ("sync", 3): (
        "0001670000000800016d0001690000000100016d0000001500030000000100016100000001000000"
        "02ffffffff",
        "000000030000000000150003000000010001610000000100000002ffffffff",
    ),
    ("sync", 4): (
        "026700000008026d026902026d160003000000010001610000000100000002ffffffff0000",
        "000000030000160003000000010001610000000100000002ffffffff00",
    ),
    ("sync", 5): (
        "026700000008026d026909636f6e73756d657213636f6f70657261746976652d737469636b790202"
        "6d160003000000010001610000000100000002ffffffff0000",
        "00000003000009636f6e73756d657213636f6f70657261746976652d737469636b79160003000000"
        "010001610000000100000002ffffffff00",
    ),
    ("heartbeat", 3): ("0001670000000800016d000169", "00000003001b"),
    ("heartbeat", 4): ("026700000008026d026900", "00000003001b00"),
    ("leave", 2): ("00016700016d", "000000030019"),
    ("leave", 3): ("0001670000000100016dffff", "0000000300000000000100016d00000019"),
    ("leave", 4): ("026702026d000000", "00000003000002026d0100190000"),
    ("leave", 5): ("026702026d00047768790000", "00000003000002026d0100190000"),
}


@pytest.mark.parametrize(("name", "version"), JAVA)
def test_requests_are_javas_byte_for_byte(name: str, version: int):
    ask: GroupRequest = CASES[name]
    request = REQUEST_CLASSES[type(ask)](ask)
    assert request.encode(version).hex() == JAVA[name, version][0]


@pytest.mark.parametrize(("name", "version"), JAVA)
def test_answers_of_java_are_read(name: str, version: int):
    ask: GroupRequest = CASES[name]
    request = REQUEST_CLASSES[type(ask)](ask)
    expected = ANSWERS[name]
    if (name, version) == ("join", 9):
        expected = JOINED._replace(skip_assignment=True)
    assert request.decode(version, bytes.fromhex(JAVA[name, version][1]), 0) == expected


def test_every_version_that_is_spoken_is_in_the_table():
    for name, ask in CASES.items():
        api = REQUEST_CLASSES[type(ask)](ask).API
        assert {v for n, v in JAVA if n == name} == set(range(api.lowest, api.highest + 1))
