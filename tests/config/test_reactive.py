from __future__ import annotations

import pytest

from gateway.config import loads
from gateway.errors import ConfigError

BEGIN = """
kafka: {servers: [localhost:9092]}
sidecar:
  reactive:
"""


def group(text: str) -> str:
    return f"{BEGIN}    groups: {text}\n"


def test_one_group_or_several_are_read_with_the_peers_defaults():
    for text in ("{group: billing, topics: [orders]}", "[{group: billing, topics: [orders]}]"):
        section = loads(group(text)).sidecar
        assert section is not None and section.reactive is not None
        (made,) = section.reactive.groups
        assert (made.max_poll_records, made.request_max_bytes) == (100, 204_800)
        assert (made.fetch_max_bytes, made.max_partition_fetch_bytes) == (102_400, 102_400)
        assert (made.max_retries, made.retry_delay, made.dead_letter_topic_ext) == (3, 1.0, ".dlq")
        assert (made.backend.path, made.backend.health_path) == ("/kafka/records", "/health")
        assert (made.group_protocol, made.leave_group_on_close) == ("auto", True)
        assert (made.accept_empty, made.parallelism) == (False, 1)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{group: größe, topics: [b]}", "'größe' goes to the back end in a header; use ASCII"),
        ("{group: 'a ', topics: [b]}", "goes to the back end in a header"),
        ("{group: a}", "has no topics, or two kinds"),
        ("{group: a, topics: [b], pattern: c}", "has no topics, or two kinds"),
        ("{group: a, pattern: '(b'}", "'(b' is no regular expression"),
        ("[{group: a, topics: [b]}, {group: a, topics: [c]}]", "'a' is used twice"),
        ("[{group: [a], topics: [b]}, {group: {}, topics: [c]}]", "groups[0].group"),
        ("{group: a, topics: [b], valueFormat: avro}", "add a registry to catalogs"),
        ("[{group: a, topics: [b], keyFormat: 4}]", "add a registry to catalogs"),
        ("{group: a, topics: [b], parallelism: 0}", "out of range"),
        ("{group: a, topics: [b], maxRetrys: 3}", "did you mean 'maxRetries'?"),
    ],
)
def test_what_is_wrong_with_a_group_is_told(text: str, what: str):
    with pytest.raises(ConfigError) as told:
        loads(group(text))
    assert what in str(told.value)


def test_a_pattern_matches_whole_names_and_no_dead_letters():
    two = "[{group: a, pattern: 'orders.*|pay'}, {group: b, topics: [x], deadLetterTopicExt: -no}]"
    section = loads(group(two)).sidecar
    assert section is not None and section.reactive is not None
    matching = section.reactive.groups[0].compile_pattern(section.dead_letter_suffixes)
    assert matching is not None
    names = ("orders", "orders-eu", "orders.dlq", "orders-no", "pay", "payments", "pay.dlq")
    assert [name for name in names if matching.fullmatch(name)] == ["orders", "orders-eu", "pay"]


def test_a_static_member_is_one_process():
    several = "listen: {workers: 2}" + group("[{group: a, topics: [b], instanceId: i}]")
    with pytest.raises(ConfigError, match="the same static member"):
        loads(several)
    loads(several.replace("workers: 2", "workers: 1"))
