"""What is wanted of topics, and what is said of those that are there."""

from __future__ import annotations

import pytest

from gateway.cli.trial.finding import State
from gateway.cli.trial.wants import Pattern, Want, judge, judge_pattern, patterns, wants
from gateway.config import loads
from gateway.kafka.protocol.requests import Operation, PartitionAnswer, TopicAnswer

READS, WRITES = 1 << Operation.READ, 1 << Operation.WRITE
ROUTES = """
kafka: {servers: [a:9092], topics: [{name: orders}, {name: orders-eu}, {name: quiet}]}
routes:
  - {when: [{path: "/all/{topics}"}], with: {topic: "${params.topics}", allow: [pay-*, users]}}
  - {when: [{path: "/{region}"}], with: {topic: "orders-${params.region}", produce: true}}
  - {when: [{path: /every/order}], with: {topic: orders}}
"""


def topic(
    name: str = "orders", operations: int | None = READS, *, error: int = 0, leaderless: int = 0
) -> TopicAnswer:
    partitions = {
        number: PartitionAnswer(-1 if number < leaderless else 1, 0, (1,), (1,), 0)
        for number in range(0 if error else 12)
    }
    return TopicAnswer(name, None, error, partitions, operations)


def said(want: Want, told: TopicAnswer | None, *names: str) -> list[tuple[State, str]]:
    readable = None if told is None else told.may(Operation.READ)
    return [(found.state, found.detail) for found in judge(want, told, readable, names)]


def test_topics_of_the_file_are_wanted_and_what_a_path_may_choose():
    settings = loads(ROUTES)
    assert wants(settings) == [
        Want("orders"), Want("orders-eu", write=True), Want("quiet"), Want("users", optional=True),
    ]  # fmt: skip
    assert patterns(settings) == [Pattern("routes[0].with.allow[0]", "pay-*")]


def test_a_topic_that_is_written_only_need_not_be_read():
    routes = """
routes:
  - {when: [{path: /pay}], with: {capability: produce, topic: payments, replyTo: paid}}
"""
    kafka = "kafka: {servers: [a:9092], topics: [{name: payments}, {name: paid}]}"
    payments = Want("payments", write=True, read=False)
    assert wants(loads(kafka + routes)) == [payments, Want("paid")]
    ((state, detail),) = said(payments, topic(operations=WRITES))
    assert state is State.WARNING and "Idempotency-Key" in detail
    assert said(payments, topic(operations=READS | WRITES)) == [
        (State.OK, "12 partitions, may be written")
    ]


def test_what_is_there_and_may_be_used_is_one_line():
    assert said(Want("orders"), topic()) == [(State.OK, "12 partitions, may be read")]
    both = topic(operations=READS | WRITES)
    assert said(Want("orders", write=True), both) == [
        (State.OK, "12 partitions, may be read and written")
    ]


def test_a_missing_topic_is_told_with_the_nearest_that_there_is():
    ((state, detail),) = said(Want("ordres"), None, "orders", "payments")
    assert state is State.FAILS and detail.endswith("did you mean 'orders'?")
    ((state, detail),) = said(Want("ordres", optional=True), None, "payments")
    assert state is State.WARNING and "create it" in detail


@pytest.mark.parametrize(
    ("want", "told", "state", "piece"),
    [
        (Want("orders"), topic(error=29), State.FAILS, "may not be described"),
        (Want("orders"), topic(operations=WRITES), State.FAILS, "READ"),
        (Want("orders", write=True), topic(operations=READS), State.FAILS, "WRITE"),
        (Want("orders", optional=True), topic(operations=0), State.WARNING, "READ"),
        (Want("orders"), topic(operations=None), State.WARNING, "no broker tells"),
        (Want("orders"), topic(leaderless=2), State.WARNING, "partitions 0, 1 of 12"),
        (Want("orders"), topic(leaderless=9), State.WARNING, "0, 1, 2, 3, 4, ... of 12"),
        (Want("orders"), topic(error=17), State.FAILS, "error 17"),
    ],
)
def test_what_is_lacking_is_told(want: Want, told: TopicAnswer, state: State, piece: str):
    ((found, detail),) = said(want, told)
    assert found is state and piece in detail


def test_every_right_that_is_lacking_is_a_line():
    lacking = said(Want("orders", write=True), topic(operations=0))
    assert [state for state, _ in lacking] == [State.FAILS, State.FAILS]


def test_a_pattern_is_told_which_of_its_topics_may_not_be_read():
    pattern = Pattern("routes[0].with.allow[0]", "*")
    there = {name: topic(name) for name in ("a", "b", "__consumer_offsets")}
    assert judge_pattern(pattern, there).detail == "2 topics, may be read"
    found = judge_pattern(pattern, {**there, "secret": topic("secret", 0)})
    assert found.state is State.WARNING and "1 of 3" in found.detail and "secret" in found.detail
    assert judge_pattern(pattern, {}).state is State.WARNING
