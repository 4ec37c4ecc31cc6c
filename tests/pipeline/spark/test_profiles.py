from __future__ import annotations

import pytest

from gateway.config.sections.job import State
from gateway.pipeline.spark import session

ROCKS = "spark.sql.streaming.stateStore.rocksdb."


@pytest.mark.parametrize("profile", session.PROFILES)
def test_every_profile_sets_the_same(profile: str) -> None:
    found = session.build_state_conf(State.model_validate({"profile": profile, "memory": "64MiB"}))
    small = session.build_state_conf(State.model_validate({"memory": "64MiB"}))
    assert found.keys() == small.keys()


def test_what_is_given_beats_the_profile() -> None:
    given = {"profile": "large", "memory": "512MiB", "snapshotAfter": 3, "retain": 7}
    found = session.build_state_conf(State.model_validate(given | {"partitions": 5}))
    assert found[f"{ROCKS}maxMemoryUsageMB"] == "512"
    assert found["spark.sql.streaming.stateStore.minDeltasForSnapshot"] == "3"
    assert found["spark.sql.streaming.minBatchesToRetain"] == "7"
    assert found["spark.sql.shuffle.partitions"] == "5"


def test_memory_is_bounded_where_it_is_large_or_asked_for() -> None:
    bounded = {
        name: session.build_state_conf(State.model_validate({"profile": name}))[
            f"{ROCKS}boundedMemoryUsage"
        ]
        for name in session.PROFILES
    }
    assert bounded == {"small": "false", "large": "true", "latency": "false"}
    given = State.model_validate({"memory": "64MiB"})
    assert session.build_state_conf(given)[f"{ROCKS}boundedMemoryUsage"] == "true"


def test_rows_are_counted_where_that_costs_little() -> None:
    counted = f"{ROCKS}trackTotalNumberOfRows"
    assert session.build_state_conf(State())[counted] == "true"
    assert session.build_state_conf(State(), is_join=True)[counted] == "false"
    assert session.build_state_conf(State.model_validate({"profile": "large"}))[counted] == "false"
