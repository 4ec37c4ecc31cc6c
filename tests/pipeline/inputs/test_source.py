from __future__ import annotations

import re

import pytest

from gateway.config import Kafka
from gateway.config.sections.job import Input
from gateway.pipeline.checkpoint.checkpoint import Sources
from gateway.pipeline.inputs.source import find_sources, read_stream

KAFKA = Kafka(servers=("localhost:9092",))  # a plan asks nobody


@pytest.mark.needs("java17")
@pytest.mark.parametrize(
    ("sql", "lines", "numbers"),
    [
        ("SELECT n FROM b UNION ALL SELECT n FROM a", "ba", "ba"),
        ("SELECT n FROM b UNION ALL SELECT n FROM a UNION ALL SELECT n FROM a", "baa", "ba"),
        ("SELECT x.n FROM a x JOIN a y ON x.n = y.n", "aa", "a"),
        ("WITH w AS (SELECT n FROM a) SELECT n FROM b UNION ALL SELECT n FROM w", "ab", "ab"),
    ],
)
def test_sources_of_a_query_are_known_by_the_inputs_that_they_read(spark, sql, lines, numbers):
    """As Spark 4.2.0 has them in a checkpoint. Both inputs read the same topic."""
    session = spark.newSession()
    value = {"fields": {"n": "bigint"}}
    for name in "ab":
        input = Input.model_validate({"topic": "t", "value": value})
        read_stream(session, input, KAFKA, {}, label=name).createOrReplaceTempView(name)
    assert find_sources(session.sql(sql)) == Sources(tuple(lines), tuple(numbers))


@pytest.mark.needs("java17")
def test_the_watermark_is_as_far_behind_as_configured(spark, capsys):
    input = Input.model_validate({"topic": "t", "watermark": "10m", "value": {"model": "string"}})
    read_stream(spark, input, KAFKA, {}, label="a").explain()
    assert re.search(r"EventTimeWatermark .*, 10 minutes", capsys.readouterr().out)
