"""Versions of checkpoints."""

from __future__ import annotations

import json
import shutil

import pytest

from gateway.config.sections.pipelines import Query, Sessions
from gateway.errors import CheckpointRefused
from gateway.pipeline.checkpoint.job_checkpoint import (
    QueryShape,
    list_versions,
    prepare_checkpoint,
    update_definition,
)


def job(gap="30m"):
    value = {"fields": {"user": "string"}}
    return Sessions.model_validate(
        {
            **{"name": "visits", "type": "sessions", "by": ["user"], "gap": gap},
            **{"from": {"topic": "clicks", "value": value}, "to": {"topic": "visits"}},
        }
    )


def test_the_first_version_has_an_id_that_spark_will_take(tmp_path):
    place = prepare_checkpoint(str(tmp_path), job(), find_hot_keys=lambda: ["k"])
    assert (place.version, place.hot_keys) == (1, ("k",))
    assert place.location == f"{tmp_path}/visits/v1"
    assert json.loads((tmp_path / "visits/v1/metadata").read_text())["id"] == place.query_id


def test_the_next_start_has_the_same(tmp_path):
    first = prepare_checkpoint(str(tmp_path), job(), find_hot_keys=lambda: ["k"])
    again = prepare_checkpoint(
        str(tmp_path), job(), find_hot_keys=lambda: pytest.fail("hot keys are asked for once")
    )
    assert (again.query_id, again.location, again.hot_keys) == (
        first.query_id,
        first.location,
        ("k",),
    )


def test_another_definition_is_refused_and_a_fresh_version_is_its_own(tmp_path):
    first = prepare_checkpoint(str(tmp_path), job())
    (tmp_path / "visits/v1/sources/0").mkdir(parents=True)
    (tmp_path / "visits/v1/sources/0/0").touch()
    with pytest.raises(CheckpointRefused, match="gap: 30m before, 1h now"):
        prepare_checkpoint(str(tmp_path), job("1h"))
    second = prepare_checkpoint(str(tmp_path), job("1h"), fresh=True)
    assert second.version == 2
    assert second.query_id != first.query_id
    assert prepare_checkpoint(str(tmp_path), job("1h")).query_id == second.query_id
    assert list_versions(str(tmp_path), "visits") == [1, 2]


def test_a_job_whose_start_failed_before_its_first_batch_may_be_corrected(tmp_path):
    """Who had a mistake in the SQL of a measure had to begin again with --fresh."""
    first = prepare_checkpoint(str(tmp_path), job(), find_hot_keys=lambda: ["k"])
    again = prepare_checkpoint(str(tmp_path), job("1h"), find_hot_keys=lambda: ["l"])
    assert (again.query_id, again.hot_keys) == (first.query_id, ("l",))
    assert prepare_checkpoint(str(tmp_path), job("1h")) == again


def test_a_version_that_was_begun_only_half_is_begun_again(tmp_path):
    (tmp_path / "visits/v1").mkdir(parents=True)
    assert prepare_checkpoint(str(tmp_path), job()).version == 1


def query(sql):
    clicks = {"topic": "clicks", "value": {"fields": {"n": "int"}}}
    return Query.model_validate(
        {
            **{"name": "asked", "type": "query", "sql": sql, "to": {"topic": "out"}},
            "tables": {"t": clicks, "u": clicks},
        }
    )


def start(root, job, *, is_stateful=False, table_order=("t",)):
    """As a job starts with its plan, up to its first batch."""
    place = prepare_checkpoint(str(root), job)
    update_definition(place, job, QueryShape(is_stateful, table_order))


def begin_batch(root):
    (root / "asked/v1/offsets").mkdir()
    (root / "asked/v1/offsets/0").write_text("v1")


def test_the_sql_of_a_query_is_part_of_its_checkpoint_where_spark_keeps_state(tmp_path):
    """An aggregate that was not in a list passed for none, and changed SQL took over its state."""
    before, after = query("SELECT try_sum(n) FROM t"), query("SELECT try_sum(n) FROM t WHERE n > 1")
    start(tmp_path, before, is_stateful=True)
    begin_batch(tmp_path)
    start(tmp_path, before, is_stateful=True)
    with pytest.raises(CheckpointRefused, match="sql: SELECT try_sum"):
        prepare_checkpoint(str(tmp_path), after)


def test_a_query_without_state_may_change_but_not_begin_to_keep_some(tmp_path):
    counting = query("SELECT count(*) FROM t")
    start(tmp_path / "new", query("SELECT n FROM t"))
    start(tmp_path / "new", counting, is_stateful=True)  # nothing was done yet
    start(tmp_path, query("SELECT n FROM t"))
    begin_batch(tmp_path)
    start(tmp_path, query("SELECT n + 1 FROM t"))
    with pytest.raises(CheckpointRefused, match=r"sql: none before, SELECT count"):
        start(tmp_path, counting, is_stateful=True)


def test_a_query_that_reads_its_tables_in_another_order_is_refused(tmp_path):
    """Spark stores offsets by the order of sources: each table was read on at another's offsets."""
    before, after = (
        query(f"SELECT n FROM {first} UNION ALL SELECT n FROM {second}")
        for first, second in ("tu", "ut")
    )
    start(tmp_path, before, table_order=("t", "u"))
    start(tmp_path, after, table_order=("u", "t"))  # nothing was read yet
    begin_batch(tmp_path)
    with pytest.raises(
        CheckpointRefused, match=r'order of tables: \["u", "t"\] before, \["t", "u"'
    ):
        start(tmp_path, before, table_order=("t", "u"))
    start(tmp_path, after, table_order=("u", "t"))


def test_the_checkpoint_of_another_job_is_refused(tmp_path):
    """Two jobs with the same definition: the one went on where the other one was."""
    prepare_checkpoint(str(tmp_path), job())
    other = job().model_copy(update={"name": "other"})
    prepare_checkpoint(str(tmp_path), other)
    shutil.rmtree(tmp_path / "visits/v1")
    shutil.copytree(tmp_path / "other/v1", tmp_path / "visits/v1")
    with pytest.raises(CheckpointRefused, match="is of job other; put the job's own checkpoint"):
        prepare_checkpoint(str(tmp_path), job())


def test_batches_of_another_checkpoint_under_the_definition_of_this_one_are_refused(tmp_path):
    place = prepare_checkpoint(str(tmp_path), job())
    (tmp_path / "visits/v1/metadata").write_text(json.dumps({"id": "another"}))
    with pytest.raises(CheckpointRefused, match=f"of query {place.query_id}, and the batches"):
        prepare_checkpoint(str(tmp_path), job())


@pytest.mark.parametrize("lost", ["definition.json", "metadata"])
def test_a_checkpoint_that_lacks_a_file_is_refused(tmp_path, lost):
    """Without its definition it got a new id, and wrote the rows of its last batch once more."""
    place = prepare_checkpoint(str(tmp_path), job())
    directory = tmp_path / "visits/v1"
    (directory / "offsets").mkdir()
    (directory / "offsets/0").write_text("v1")
    (directory / lost).unlink()
    with pytest.raises(CheckpointRefused, match=rf"{place.location} has no {lost}, .*put the"):
        prepare_checkpoint(str(tmp_path), job())


def test_an_empty_directory_beside_a_checkpoint_is_no_new_version(tmp_path):
    """The job began once more in it, and wrote all rows again."""
    prepare_checkpoint(str(tmp_path), job())
    (tmp_path / "visits/v7").mkdir()
    (tmp_path / "visits/v8").write_text("a file")
    with pytest.raises(
        CheckpointRefused, match=r"v7 has no definition.json.* remove the directory"
    ):
        prepare_checkpoint(str(tmp_path), job())
    (tmp_path / "visits/v7/metadata").write_text('{"id": "a"}')  # `--fresh` was killed there
    assert prepare_checkpoint(str(tmp_path), job()).version == 7


@pytest.mark.parametrize("name", ["definition.json", "metadata"])
@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2, "job": "visits"}', '{"id'])
def test_a_damaged_file_is_named(tmp_path, name, content):
    """The log said "Expecting value: line 1 column 1", or KeyError."""
    prepare_checkpoint(str(tmp_path), job())
    (tmp_path / "visits/v1" / name).write_text(content)
    match = "is of format None" if (name, content) == ("definition.json", "{}") else "is damaged"
    with pytest.raises(CheckpointRefused, match=rf"{name} {match}"):
        prepare_checkpoint(str(tmp_path), job())
