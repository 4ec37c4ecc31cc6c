"""Versions of checkpoints."""

from __future__ import annotations

import json
import shutil

import pytest

from gateway.config.sections.pipelines import Query, Sessions
from gateway.errors import CheckpointRefused
from gateway.pipeline.checkpoint import checkpoints
from gateway.pipeline.checkpoint.place import ready, settle_state


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


def query(sql):
    return Query.model_validate(
        {
            **{"name": "asked", "type": "query", "sql": sql, "to": {"topic": "out"}},
            "tables": {"t": {"topic": "clicks", "value": {"fields": {"n": "int"}}}},
        }
    )


def test_the_sql_of_a_query_is_part_of_its_checkpoint_where_spark_keeps_state(tmp_path):
    """An aggregate that was not in a list passed for none, and changed SQL took over its state."""
    before, after = query("SELECT try_sum(n) FROM t"), query("SELECT try_sum(n) FROM t WHERE n > 1")
    settle_state(ready(str(tmp_path), before), before, stateful=True)
    (tmp_path / "asked/v1/offsets").mkdir()
    (tmp_path / "asked/v1/offsets/0").write_text("v1")
    settle_state(ready(str(tmp_path), before), before, stateful=True)
    with pytest.raises(CheckpointRefused, match="sql: SELECT try_sum"):
        ready(str(tmp_path), after)


def test_a_query_without_state_may_change_but_not_begin_to_keep_some(tmp_path):
    before, after = query("SELECT n FROM t"), query("SELECT n + 1 FROM t")
    settle_state(ready(str(tmp_path), before), before, stateful=False)
    settle_state(ready(str(tmp_path), after), after, stateful=False)
    counting = query("SELECT count(*) FROM t")
    settle_state(ready(str(tmp_path), counting), counting, stateful=True)  # nothing was done yet
    place = ready(str(tmp_path), before, fresh=True)
    (tmp_path / f"asked/v{place.version}/offsets").mkdir()
    (tmp_path / f"asked/v{place.version}/offsets/0").write_text("v1")
    with pytest.raises(CheckpointRefused, match=r"sql: none before, SELECT count"):
        settle_state(ready(str(tmp_path), counting), counting, stateful=True)


def test_the_checkpoint_of_another_job_is_refused(tmp_path):
    """Two jobs with the same definition: the one went on where the other one was."""
    ready(str(tmp_path), job())
    other = job().model_copy(update={"name": "other"})
    ready(str(tmp_path), other)
    shutil.rmtree(tmp_path / "visits/v1")
    shutil.copytree(tmp_path / "other/v1", tmp_path / "visits/v1")
    with pytest.raises(CheckpointRefused, match="is of job other; put the job's own checkpoint"):
        ready(str(tmp_path), job())


@pytest.mark.parametrize("names_query", [True, False])
def test_batches_of_another_checkpoint_under_the_definition_of_this_one_are_refused(
    tmp_path, names_query
):
    """Definitions of older versions do not name the query: they are taken as before."""
    place = ready(str(tmp_path), job())
    (tmp_path / "visits/v1/metadata").write_text(json.dumps({"id": "another"}))
    if names_query:
        with pytest.raises(CheckpointRefused, match=f"of query {place.query}, and the batches"):
            ready(str(tmp_path), job())
        return
    file = tmp_path / "visits/v1/definition.json"
    content = json.loads(file.read_text())
    del content["query"]
    file.write_text(json.dumps(content))
    assert ready(str(tmp_path), job()).query == "another"
