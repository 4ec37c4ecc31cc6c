"""What may change under a checkpoint, and what may not."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from gateway.config.sections.pipelines import AnyJob
from gateway.errors import CheckpointRefused
from gateway.pipeline.checkpoint import job_checkpoint

SESSIONS = {
    "name": "visits",
    "type": "sessions",
    "from": {
        "topic": "clicks",
        "value": {"fields": {"user": "string", "at": "timestamp_ms", "page": "string"}},
        "time": "at",
    },
    "by": ["user"],
    "gap": "30m",
    "to": {"topic": "visits"},
}
JOIN = {
    "name": "paid",
    "type": "join",
    "left": {"topic": "orders", "value": {"fields": {"id": "string", "x": "int"}}},
    "right": {"topic": "payments", "value": {"fields": {"order": "string"}}},
    "on": {"id": "order"},
    "to": {"topic": "paid"},
}
ENRICH = {
    "name": "rich",
    "type": "enrich",
    "from": {"topic": "clicks", "value": {"fields": {"user": "string"}}},
    "on": "user",
    "table": {"kind": "broadcast", "topic": "users", "fields": {"age": "int"}},
    "to": {"topic": "rich"},
}


def job(base, **changes):
    """With other options; `from__watermark` is one within `from`."""
    made = {**base}
    for name, value in changes.items():
        first, _, second = name.partition("__")
        made[first] = {**made.get(first, {}), second: value} if second else value
    return TypeAdapter(AnyJob).validate_python(made)


def changed(base, **changes):
    before, hot = job_checkpoint.parse_definition(job_checkpoint.encode_definition(job(base)))
    assert hot == []
    return job_checkpoint.find_differences(
        before, job_checkpoint.build_definition(job(base, **changes))
    )


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (SESSIONS, {}),
        (SESSIONS, {"trigger": "10s", "alertLate": "5%"}),
        (SESSIONS, {"from__watermark": "1h", "from__maxRecords": 10, "from__late": "skip"}),
        (SESSIONS, {"to__writers": 5, "to__topic": "other", "state__profile": "large"}),
        (JOIN, {"select": {}}),
        (ENRICH, {"on": "_key", "from__time": "_timestamp"}),
    ],
)
def test_what_state_does_not_depend_on_may_change(base, changes):
    assert changed(base, **changes) == []


def test_columns_that_a_job_does_not_use_may_come_and_go():
    fields = {"user": "string", "at": "timestamp_ms", "referrer": "string"}
    assert changed(SESSIONS, from__value={"fields": fields}) == []
    named = {"fields": fields, "jsonNames": {"at": "@timestamp"}}
    (difference,) = changed(SESSIONS, from__value=named)
    assert difference.endswith("fields.at: timestamp_ms before, timestamp_ms from @timestamp now")
    wider = {"fields": {"id": "string", "x": "int", "y": "int"}}
    assert changed(JOIN, left__value=wider) == ["left.fields.y: none before, int now"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT User, count(1) AS n FROM t GROUP BY User",
        "SELECT count(1) AS n,\nuser FROM t GROUP BY\nuser",
        "SELECT count(1) AS n FROM t NATURAL JOIN u",
        "FROM t |> JOIN u USING (id) |> AGGREGATE count(1) AS n GROUP BY id",
    ],
)
def test_a_column_is_used_however_the_sql_writes_it(sql):
    """Columns in another case, and those at the start of a line, counted as unused."""
    tables = {"t": {"topic": "t", "value": {"fields": {"user": "string"}}}}
    query = {"name": "counts", "type": "query", "tables": tables, "sql": sql, "to": {"topic": "o"}}
    before = job(query)
    value = {"fields": {"user": "int"}, "jsonNames": {"user": "uid"}}
    after = job(query, tables={"t": {"topic": "t", "value": value}})
    stored, current = (
        job_checkpoint.build_definition(each, job_checkpoint.QueryShape(True))
        for each in (before, after)
    )
    assert job_checkpoint.find_differences(stored, current) == [
        "t.fields.user: string before, int from uid now"
    ]
    stored, current = (
        job_checkpoint.describe_rows(each, ["n"], {"t": {"user": kind}})
        for each, kind in ((before, "string"), (after, "int"))
    )
    assert stored != current


@pytest.mark.parametrize(
    ("base", "changes", "said"),
    [
        (SESSIONS, {"gap": "1h"}, "gap: 30m before, 1h now"),
        (SESSIONS, {"by": ["page"]}, 'by: ["user"] before, ["page"] now'),
        (SESSIONS, {"from__topic": "others"}, "from.topic: clicks before, others now"),
        (SESSIONS, {"measures": {"n": "count(page)"}}, "measures.n: none before, count(page) now"),
        (JOIN, {"kind": "left"}, "kind: inner before, left now"),
        (ENRICH, {"from__topic": "others"}, "from.topic: clicks before, others now"),
    ],
)
def test_what_state_means_may_not(base, changes, said):
    assert said in changed(base, **changes)


def test_a_refusal_says_what_differs_and_what_to_do():
    before, _ = job_checkpoint.parse_definition(job_checkpoint.encode_definition(job(SESSIONS)))
    with pytest.raises(CheckpointRefused, match=r"gap: 30m before, 1h now\); take .*--fresh") as it:
        job_checkpoint.verify_definition(job(SESSIONS, gap="1h"), before, "/checkpoints/visits/v1")
    assert it.value.differences == ("gap: 30m before, 1h now",)
    job_checkpoint.verify_definition(job(SESSIONS), before, "/checkpoints/visits/v1")


def test_other_partitions_of_state_are_a_matter_of_rescaling():
    before, _ = job_checkpoint.parse_definition(job_checkpoint.encode_definition(job(SESSIONS)))
    with pytest.raises(CheckpointRefused, match="`gateway pipeline rescale visits --partitions 8`"):
        job_checkpoint.verify_definition(job(SESSIONS, state__partitions=8), before, "v1")


def test_hot_keys_are_kept_and_another_format_is_refused():
    assert job_checkpoint.parse_definition(job_checkpoint.encode_definition(job(JOIN), ["a"]))[
        1
    ] == ["a"]
    with pytest.raises(CheckpointRefused, match="is of format 3, not 2"):
        job_checkpoint.parse_definition(b'{"format": 3}')
