"""Which jobs tell what is beside their rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import loads
from gateway.pipeline import query


def job(trigger: str, **more: Any) -> Any:
    read = {"topic": "clicks", "value": {"fields": {"user": "string"}}, **more}
    made = {"name": "few", "type": "query", "trigger": trigger, "tables": {"clicks": read}}
    made |= {"sql": "SELECT user FROM clicks", "to": {"topic": "few", "guarantee": "at-least-once"}}
    pipelines = {"checkpoints": "/tmp/few", "jobs": [made]}
    text = json.dumps({"kafka": {"servers": ["localhost:9092"]}, "pipelines": pipelines})
    settings = loads(text)
    assert settings.pipelines is not None
    return settings.pipelines.jobs[0]


@pytest.mark.parametrize(
    "written", [{"late": "topic"}, {"onInvalid": "dead-letter"}, {"onDataLoss": "gap"}]
)
def test_a_job_at_least_once_tells_what_is_beside_its_rows_where_that_is_written(written: Any):
    assert query._told(job("1s", **written))


def test_else_it_does_not_nor_in_real_time_mode():
    assert not query._told(job("1s"))
    assert not query._told(job("1s", onInvalid="fail", late="skip"))
    assert not query._told(job("realtime", late="topic"))
