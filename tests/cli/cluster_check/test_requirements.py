"""What is wanted of topics, and what is said of those that are there."""

from __future__ import annotations

import pytest

from gateway.cli.cluster_check.finding import FindingState
from gateway.cli.cluster_check.requirements import (
    TopicPattern,
    TopicRequirement,
    check_pattern,
    check_topic,
    list_patterns,
    list_requirements,
)
from gateway.config import loads
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata, TopicOperation

READS, WRITES = 1 << TopicOperation.READ, 1 << TopicOperation.WRITE
ROUTES = """
kafka: {servers: [a:9092], topics: [{name: orders}, {name: orders-eu}, {name: quiet}]}
routes:
  - {when: [{path: "/all/{topics}"}], with: {topic: "${params.topics}", allow: [pay-*, users]}}
  - {when: [{path: "/{region}"}], with: {topic: "orders-${params.region}", produce: true}}
  - {when: [{path: /every/order}], with: {topic: orders}}
"""


def topic(
    name: str = "orders", operations: int | None = READS, *, error: int = 0, leaderless: int = 0
) -> TopicMetadata:
    partitions = {
        number: PartitionMetadata(-1 if number < leaderless else 1, 0, (1,), (1,), 0)
        for number in range(0 if error else 12)
    }
    return TopicMetadata(name, None, error, partitions, operations)


def said(
    want: TopicRequirement, told: TopicMetadata | None, *names: str
) -> list[tuple[FindingState, str]]:
    readable = None if told is None else told.is_allowed(TopicOperation.READ)
    return [(found.state, found.detail) for found in check_topic(want, told, readable, names)]


def test_topics_of_the_file_are_wanted_and_what_a_path_may_choose():
    settings = loads(ROUTES)
    assert list_requirements(settings) == [
        TopicRequirement("orders"),
        TopicRequirement("orders-eu", write=True),
        TopicRequirement("quiet"),
        TopicRequirement("users", optional=True),
    ]
    assert list_patterns(settings) == [TopicPattern("routes[0].with.allow[0]", "pay-*")]


def test_a_topic_that_is_written_only_need_not_be_read():
    routes = """
routes:
  - {when: [{path: /pay}], with: {capability: produce, topic: payments, replyTo: paid}}
"""
    kafka = "kafka: {servers: [a:9092], topics: [{name: payments}, {name: paid}]}"
    payments = TopicRequirement("payments", write=True, read=False)
    assert list_requirements(loads(kafka + routes)) == [payments, TopicRequirement("paid")]
    ((state, detail),) = said(payments, topic(operations=WRITES))
    assert state is FindingState.WARNING and "Idempotency-Key" in detail
    assert said(payments, topic(operations=READS | WRITES)) == [
        (FindingState.OK, "12 partitions, may be written")
    ]


def test_what_is_there_and_may_be_used_is_one_line():
    assert said(TopicRequirement("orders"), topic()) == [
        (FindingState.OK, "12 partitions, may be read")
    ]
    both = topic(operations=READS | WRITES)
    assert said(TopicRequirement("orders", write=True), both) == [
        (FindingState.OK, "12 partitions, may be read and written")
    ]


def test_a_missing_topic_is_told_with_the_nearest_that_there_is():
    ((state, detail),) = said(TopicRequirement("ordres"), None, "orders", "payments")
    assert state is FindingState.FAILS and detail.endswith("did you mean 'orders'?")
    ((state, detail),) = said(TopicRequirement("ordres", optional=True), None, "payments")
    assert state is FindingState.WARNING and "create it" in detail


@pytest.mark.parametrize(
    ("want", "told", "state", "piece"),
    [
        (TopicRequirement("orders"), topic(error=29), FindingState.FAILS, "may not be described"),
        (TopicRequirement("orders"), topic(operations=WRITES), FindingState.FAILS, "READ"),
        (
            TopicRequirement("orders", write=True),
            topic(operations=READS),
            FindingState.FAILS,
            "WRITE",
        ),
        (
            TopicRequirement("orders", optional=True),
            topic(operations=0),
            FindingState.WARNING,
            "READ",
        ),
        (
            TopicRequirement("orders"),
            topic(operations=None),
            FindingState.WARNING,
            "no broker tells",
        ),
        (
            TopicRequirement("orders"),
            topic(leaderless=2),
            FindingState.WARNING,
            "partitions 0, 1 of 12",
        ),
        (
            TopicRequirement("orders"),
            topic(leaderless=9),
            FindingState.WARNING,
            "0, 1, 2, 3, 4, 5, 6, 7, and 1 more of 12",
        ),
        (TopicRequirement("orders"), topic(error=17), FindingState.FAILS, "error 17"),
    ],
)
def test_what_is_lacking_is_told(want, told, state, piece):
    ((found, detail),) = said(want, told)
    assert found is state and piece in detail


def test_every_right_that_is_lacking_is_a_line():
    lacking = said(TopicRequirement("orders", write=True), topic(operations=0))
    assert [state for state, _ in lacking] == [FindingState.FAILS, FindingState.FAILS]


def test_a_pattern_is_told_which_of_its_topics_may_not_be_read():
    pattern = TopicPattern("routes[0].with.allow[0]", "*")
    there = {name: topic(name) for name in ("a", "b", "__consumer_offsets")}
    assert check_pattern(pattern, there).detail == "2 topics, may be read"
    found = check_pattern(pattern, {**there, "secret": topic("secret", 0)})
    assert (
        found.state is FindingState.WARNING
        and "1 of 3" in found.detail
        and "secret" in found.detail
    )
    assert check_pattern(pattern, {}).state is FindingState.WARNING
