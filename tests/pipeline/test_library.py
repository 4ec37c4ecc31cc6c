"""What programs that use the pipeline as a library are told before a query starts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from support.doc_blocks import DOCS, ROOT, read_blocks

from gateway.errors import ConfigError, PipelineError
from gateway.pipeline import read_topic, write_exactly_once

SERVERS = "localhost:9092"
FIELDS = {"user": "string", "at": "timestamp"}


def read(spark: Any, topic: str = "clicks", **options: Any) -> Any:
    return read_topic(spark, topic, servers=SERVERS, **{"fields": FIELDS, **options})


def write(rows: Any, **options: Any) -> Any:
    needed = {"servers": SERVERS, "checkpoint": "/tmp/none", "name": "visits", "key": ["user"]}
    return write_exactly_once(rows, **{"topic": "visits", **needed, **options})


@pytest.mark.needs("process")
def test_the_package_is_imported_without_pyspark_and_the_settings():
    code = "import sys, gateway.pipeline; print({'pyspark', 'pydantic'} & {*sys.modules})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert out.stdout.strip() == b"set()"


@pytest.mark.needs("java17")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": None}, "JSON has no schema; name its columns, such as fields: {user: string}"),
        ({"fields": {"user": "strng"}}, "fields.user: 'strng' is no type of Spark SQL; did you"),
        ({"time": "user"}, "time: 'user' is of type string; make it timestamp"),
        ({"watermark": 5}, "watermark: 5 has no unit; write a number and a unit, such as 5s"),
        ({"model": "avro"}, "model: model avro needs a schema; add catalog"),
        ({"name": "web|clicks"}, "name: 'web.clicks' has other characters than letters"),
        ({"start": "now"}, "start: Input should be 'earliest' or 'latest'"),
    ],
)
def test_a_wrong_argument_is_named_before_spark_is_used(options, message):
    with pytest.raises(ConfigError, match=message.replace("{", r"\{")):
        read(None, **options)


@pytest.mark.needs("java17")
def test_a_session_without_a_setting_is_told_the_line_to_add(spark):
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    line = r'\n    spark\.conf\.set\("spark\.sql\.session\.timeZone", "UTC"\)$'
    with pytest.raises(PipelineError, match=f"or add before the first read_topic:{line}"):
        read(session)


@pytest.mark.needs("java17")
def test_rows_that_cannot_be_written_exactly_once_are_refused(spark):
    clicks = read(spark)
    rate = spark.readStream.format("rate").load().selectExpr("CAST(value AS string) AS user")
    with pytest.raises(PipelineError, match="a stream that is not of read_topic"):
        write(clicks.rows.select("user").union(rate))
    clicks.rows.createOrReplaceTempView("clicks")
    both = spark.sql("WITH c AS (SELECT user FROM clicks) SELECT * FROM c")
    with pytest.raises(ConfigError, match="output_mode: it is 'complete'; write append or update"):
        write(both, output_mode="complete")
    with pytest.raises(ConfigError, match="no column 'usr'"):  # its streams are known
        write(both, key=["usr"])
    with pytest.raises(PipelineError, match="the rows are no stream"):
        write(spark.sql("SELECT 'ada' AS user"))
    with pytest.raises(ConfigError, match="no column 'usr'; did you mean 'user'"):
        write(clicks.rows, key=["usr"])
    with pytest.raises(ConfigError, match="trigger: realtime cannot write exactly once"):
        write(clicks.rows, trigger="realtime")
    with pytest.raises(ConfigError, match=r"topic: 'clicks.dlq' gets others than rows"):
        write(clicks.rows, topic="clicks.dlq")
    with pytest.raises(ConfigError, match="name: 'Visits' is no name of a job"):
        write(clicks.rows, name="Visits")


@pytest.mark.needs("java17")
def test_invalid_records_are_a_stream_of_their_own(spark):
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "headers", "_reason"]
    assert sorted(read(spark).invalid.columns) == sorted(columns)
    assert read(spark, headers=True).rows.columns[-1] == "_headers"
    assert "_headers" not in read(spark).rows.columns


def test_the_program_of_the_page_is_the_example_that_runs_against_kafka():
    program = read_blocks(DOCS / "pipeline-library.md")[0].text
    example = (ROOT / "examples" / "pipeline" / "visits.py").read_text()
    assert example.partition('"""\n\n')[2] == program
