"""Pages of consumer groups, and what is shown of one."""

from __future__ import annotations

from typing import Any

from gateway.core.log.record import TopicPartition
from gateway.kafka.admin import PartitionLag
from gateway.kafka.protocol.group_messages import (
    GroupDescription,
    GroupListing,
    MemberDescription,
)
from gateway.web.console.kafka_lookup import (
    MAX_DESCRIBED_PARTITIONS,
    MAX_MEMBERS,
    PAGE_SIZE,
    build_description,
    build_page,
)

LISTINGS = [
    GroupListing(f"{kind}-{number:03}", "consumer", "Stable", "classic")
    for kind in ("billing", "stock")
    for number in range(PAGE_SIZE)
]


def list_names(page: dict[str, Any]) -> list[str]:
    return [each["group"] for each in page["groups"]]


def describe(members: int, lags: dict[TopicPartition, PartitionLag]) -> dict[str, Any]:
    described = tuple(
        MemberDescription(f"id-{number}", None, "shop", "/10.0.0.1", frozenset(list(lags)[:2]))
        for number in range(members)
    )
    group = GroupDescription(0, 0, None, "billing", "classic", "Stable", "range", described)
    return build_description(group, lags)


def test_groups_are_paged_by_name():
    first = build_page(LISTINGS, "", "")
    assert list_names(first) == [each.name for each in LISTINGS[:PAGE_SIZE]]
    assert (first["total"], first["next"]) == (len(LISTINGS), "billing-099")
    second = build_page(LISTINGS, "", first["next"])
    assert list_names(second) == [each.name for each in LISTINGS[PAGE_SIZE:]]
    assert second["next"] is None
    # The last group of a page may be gone by the next request.
    assert list_names(build_page(LISTINGS, "", "billing-098x"))[0] == "billing-099"


def test_groups_are_found_by_a_part_of_their_name():
    page = build_page(LISTINGS, "STOCK-00", "")
    assert page["total"] == 10 and page["next"] is None
    assert all(name.startswith("stock-00") for name in list_names(page))
    assert build_page(LISTINGS, "nothing", "")["groups"] == []


def test_a_group_has_its_members_and_the_partitions_furthest_behind_first():
    tps = [TopicPartition("orders", number) for number in range(3)]
    lags = {
        tps[0]: PartitionLag(10, 12, "id-0"),
        tps[1]: PartitionLag(None, 5, "id-0"),
        tps[2]: PartitionLag(1, 100, None),
    }
    found = describe(1, lags)
    assert [each["partition"] for each in found["partitions"]] == [2, 0, 1]
    assert [each["lag"] for each in found["partitions"]] == [99, 2, None]
    assert found["lag"] == 101
    assert found["members"] == [
        {"id": "id-0", "instanceId": None, "clientId": "shop", "host": "10.0.0.1", "partitions": 2}
    ]


def test_a_group_that_has_committed_nothing_has_no_lag():
    assert describe(0, {})["lag"] is None


def test_of_a_large_group_only_a_part_is_shown_and_its_size_is():
    lags = {
        TopicPartition("orders", number): PartitionLag(0, number)
        for number in range(MAX_DESCRIBED_PARTITIONS + 5)
    }
    found = describe(MAX_MEMBERS + 5, lags)
    assert (
        len(found["partitions"]) == MAX_DESCRIBED_PARTITIONS
        and len(found["members"]) == MAX_MEMBERS
    )
    assert found["partitionCount"] == MAX_DESCRIBED_PARTITIONS + 5
    assert found["memberCount"] == MAX_MEMBERS + 5
    assert found["partitions"][0]["lag"] == MAX_DESCRIBED_PARTITIONS + 4
