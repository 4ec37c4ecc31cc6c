"""The session that jobs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.sections.job import Spark, State
from gateway.config.sections.pipelines import Pipelines
from gateway.errors import PipelineError
from gateway.pipeline.run.runner import create_configured_session
from gateway.pipeline.spark import session, spark_home
from gateway.pipeline.spark.session import (
    build_checkpoint_conf,
    build_session_conf,
    create_job_session,
    format_jvm_end,
)
from gateway.pipeline.spark.spark_home import (
    SCALA_VERSION,
    SPARK_VERSION,
    fetch_connector_jars,
    read_pinned_jars,
)


def executable(path, banner):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (-9, "signal 9; the machine may have had no memory left: lower spark.memory"),
        (52, "exit code 52; it had too little memory: raise spark.memory"),
        (1, "exit code 1; its output above has the reason"),
    ],
)
def test_how_the_jvm_ended_is_said_with_what_to_do(status: int, reason: str):
    assert f"JVM has ended with {reason}" in format_jvm_end(status)


@pytest.mark.needs("java17")
def test_the_connector_is_of_the_version_of_the_wheel():
    from importlib.metadata import version

    assert version("pyspark") == SPARK_VERSION
    names = {jar.artifact: jar.version for jar in read_pinned_jars()}
    assert names[f"spark-sql-kafka-0-10_{SCALA_VERSION}"] == SPARK_VERSION
    assert len(names) == 4


def test_without_java_it_is_said_what_to_install(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(PipelineError, match=r"needs Java 17, and there is none; install .*apt-get"):
        spark_home.find_java()


@pytest.mark.needs("process")
def test_an_older_java_is_named_with_its_version(monkeypatch, tmp_path):
    executable(tmp_path / "bin" / "java", 'openjdk version "11.0.2" 2019-01-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match=r"bin/java \(JAVA_HOME\) is Java 11; install"):
        spark_home.find_java()


@pytest.mark.needs("process")
def test_a_java_home_without_java_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match="does not run"):
        spark_home.find_java()


def test_a_job_has_settings_of_its_own_in_the_shared_context(spark):
    job = create_job_session(spark, {"spark.sql.shuffle.partitions": "7"})
    assert job.conf.get("spark.sql.shuffle.partitions") == "7"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert job.conf.get("spark.sql.session.timeZone") == "UTC"
    assert "RocksDB" in job.conf.get("spark.sql.streaming.stateStore.providerClass")


def test_the_connector_of_kafka_is_there(spark):
    assert all(jar.is_file() for jar in fetch_connector_jars())
    frame = spark.readStream.format("kafka")
    frame = frame.option("kafka.bootstrap.servers", "127.0.0.1:1").option("subscribe", "none")
    assert frame.load().columns[:3] == ["key", "value", "topic"]


def test_python_functions_run_in_workers(spark):
    def doubled(batches):
        for batch in batches:
            yield batch.set_column(0, "n", batch.column(0).cast("int64"))

    assert spark.range(4).mapInArrow(doubled, "n long").count() == 4


def test_a_setting_of_the_user_beats_ours():
    asked = Spark(memory="2GiB", conf={"spark.ui.enabled": "true"})
    found = build_session_conf(asked, jars=[Path("/one.jar"), Path("/two.jar")])
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.driver.memory"] == "2048m"
    assert found["spark.jars"] == "/one.jar,/two.jar"


def test_a_setting_of_the_user_beats_that_of_a_jobs_state(spark, tmp_path):
    repair = "spark.sql.streaming.stateStore.autoSnapshotRepair.enabled"
    job = {
        **{"name": "visits", "type": "sessions", "by": ["user"], "to": {"topic": "visits"}},
        "from": {"topic": "clicks", "value": {"fields": {"user": "string"}}},
    }
    asked = {repair: "false", "spark.sql.session.timeZone": "Asia/Tokyo"}
    for conf in ({}, asked):
        written = {"checkpoints": str(tmp_path), "jobs": [job], "spark": {"conf": conf}}
        section = Pipelines.model_validate(written)
        own = create_configured_session(spark, section, section.jobs[0])
        ours = {repair: "true", "spark.sql.session.timeZone": "UTC"}
        assert {key: own.conf.get(key) for key in ours} == ours | conf


def test_under_spark_submit_what_belongs_to_its_jvm_is_left_alone():
    found = build_session_conf(Spark(), jars=None)
    assert "spark.sql.session.timeZone" in found
    assert not {"spark.master", "spark.driver.memory", "spark.jars"} & found.keys()


def test_checkpoints_of_this_machine_are_renamed_without_processes(spark, tmp_path):
    own = create_job_session(spark, build_checkpoint_conf(str(tmp_path)))
    path = spark._jvm.org.apache.hadoop.fs.Path(str(tmp_path))
    managers = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing
    conf = own._jsparkSession.sessionState().newHadoopConf()
    chosen = managers.CheckpointFileManager.create(path, conf)
    assert chosen.getClass().getSimpleName() == "FileSystemBasedCheckpointFileManager"


def test_checkpoints_elsewhere_are_renamed_as_spark_would():
    assert not build_checkpoint_conf("s3a://jobs/checkpoints")
    assert (
        build_checkpoint_conf("checkpoints")
        == build_checkpoint_conf("file:///var/checkpoints")
        != {}
    )


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
