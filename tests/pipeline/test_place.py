"""Versions of checkpoints."""

from __future__ import annotations

import json

import pytest

from gateway.config.pipelines import Sessions
from gateway.errors import CheckpointRefused
from gateway.pipeline import checkpoints
from gateway.pipeline.place import ready


def job(gap="30m"):
    value = {"fields": {"user": "string"}}
    return Sessions.model_validate(
        {
            **{"name": "visits", "type": "sessions", "by": ["user"], "gap": gap},
            **{"from": {"topic": "clicks", "value": value}, "to": {"topic": "visits"}},
        }
    )


def test_the_first_version_has_an_id_that_spark_will_take(tmp_path):
    place = ready(str(tmp_path), job(), hot=lambda: ["k"])
    assert (place.version, place.new, place.hot) == (1, True, ("k",))
    assert place.location == f"{tmp_path}/visits/v1"
    assert json.loads((tmp_path / "visits/v1/metadata").read_text()) == {"id": place.query}


def test_the_next_start_has_the_same(tmp_path):
    first = ready(str(tmp_path), job(), hot=lambda: ["k"])
    again = ready(str(tmp_path), job(), hot=lambda: pytest.fail("hot keys are asked for once"))
    assert (again.query, again.location, again.hot) == (first.query, first.location, ("k",))
    assert not again.new


def test_another_definition_is_refused_and_a_fresh_version_is_its_own(tmp_path):
    first = ready(str(tmp_path), job())
    with pytest.raises(CheckpointRefused, match="gap: 30m before, 1h now"):
        ready(str(tmp_path), job("1h"))
    second = ready(str(tmp_path), job("1h"), fresh=True)
    assert (second.version, second.new) == (2, True)
    assert second.query != first.query
    assert ready(str(tmp_path), job("1h")).query == second.query
    assert checkpoints.versions(tmp_path, "visits") == [1, 2]


def test_a_version_that_was_begun_only_half_is_begun_again(tmp_path):
    (tmp_path / "visits/v1").mkdir(parents=True)
    assert ready(str(tmp_path), job()).version == 1
