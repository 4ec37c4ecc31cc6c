from __future__ import annotations

import pytest

from gateway.config.sections.job import State
from gateway.pipeline.state import profiles

ROCKS = "spark.sql.streaming.stateStore.rocksdb."


@pytest.mark.parametrize("profile", profiles.PROFILES)
def test_every_profile_sets_the_same_with_a_reason(profile: str) -> None:
    found = profiles.build_settings(State.model_validate({"profile": profile, "memory": "64MiB"}))
    keys = [each.key for each in found]
    small = profiles.build_settings(State.model_validate({"memory": "64MiB"}))
    assert keys == [each.key for each in small]
    assert len(set(keys)) == len(keys)
    assert all(each.reason for each in found)


def test_what_is_given_beats_the_profile() -> None:
    given = {"profile": "large", "memory": "512MiB", "snapshotAfter": 3, "retain": 7}
    found = profiles.build_conf(State.model_validate(given | {"partitions": 5}))
    assert found[f"{ROCKS}maxMemoryUsageMB"] == "512"
    assert found["spark.sql.streaming.stateStore.minDeltasForSnapshot"] == "3"
    assert found["spark.sql.streaming.minBatchesToRetain"] == "7"
    assert found["spark.sql.shuffle.partitions"] == "5"


def test_memory_is_bounded_where_it_is_large_or_asked_for() -> None:
    bounded = {
        name: profiles.build_conf(State.model_validate({"profile": name}))[
            f"{ROCKS}boundedMemoryUsage"
        ]
        for name in profiles.PROFILES
    }
    assert bounded == {"small": "false", "large": "true", "latency": "false"}
    given = State.model_validate({"memory": "64MiB"})
    assert profiles.build_conf(given)[f"{ROCKS}boundedMemoryUsage"] == "true"


def test_rows_are_counted_where_that_costs_little() -> None:
    counted = f"{ROCKS}trackTotalNumberOfRows"
    assert profiles.build_conf(State())[counted] == "true"
    assert profiles.build_conf(State(), is_join=True)[counted] == "false"
    assert profiles.build_conf(State.model_validate({"profile": "large"}))[counted] == "false"
