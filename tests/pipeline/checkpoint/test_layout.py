from __future__ import annotations

from gateway.pipeline.checkpoint import checkpoint
from gateway.pipeline.checkpoint.checkpoint import StoreId

NAMES = [
    "metadata",
    "offsets/9",
    "offsets/10",
    "commits/9",
    "state/0/0/8.zip",
    "state/0/0/9.changelog",
    "state/0/0/10.changelog",
    "state/0/0/10.zip",
    "state/0/0/SSTs/000009-uuid.sst",
    "state/0/1/10.changelog",
    "state/0/1/left-keyToNumValues/3_0a1b-2c.changelog",
    "state/0/_metadata/metadata",
]


def test_stores_are_found_by_operator_partition_and_name() -> None:
    assert list(checkpoint.parse_stores(NAMES)) == [
        StoreId(0, 0, "default"),
        StoreId(0, 1, "default"),
        StoreId(0, 1, "left-keyToNumValues"),
    ]


def test_ways_to_a_version_begin_with_the_newest_snapshot() -> None:
    store = checkpoint.parse_stores(NAMES)[StoreId(0, 0, "default")]
    assert list(store.iter_chains(10)) == [
        (10, ["state/0/0/10.zip"]),
        (8, ["state/0/0/8.zip", "state/0/0/9.changelog", "state/0/0/10.changelog"]),
    ]


def test_no_way_leads_over_a_missing_changelog() -> None:
    store = checkpoint.parse_stores(NAMES)[StoreId(0, 1, "default")]
    assert not list(store.iter_chains(10))
    assert not list(store.iter_chains(11))


def test_changelogs_from_the_first_version_on_need_no_snapshot() -> None:
    names = ["state/0/0/1.changelog", "state/0/0/2.changelog"]
    store = checkpoint.parse_stores(names)[StoreId(0, 0, "default")]
    assert list(store.iter_chains(2)) == [(0, names)]


def test_batches_are_numbers_in_their_order() -> None:
    assert checkpoint.parse_batches([*NAMES, "offsets/.10.crc"], "offsets") == [9, 10]


def test_stores_beyond_the_partitions_are_left_behind() -> None:
    assert list(checkpoint.select_in_use(checkpoint.parse_stores(NAMES), 1)) == [
        StoreId(0, 0, "default")
    ]


def test_schemas_and_identity_are_always_needed_and_state_is_not() -> None:
    assert [name for name in NAMES if checkpoint.is_always_needed(name)] == [
        "metadata",
        "state/0/_metadata/metadata",
    ]
