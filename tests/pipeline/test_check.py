"""What is said of jobs before Spark starts: where, what, what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.brokers import embedded_kafka
from typer.testing import CliRunner

from gateway import cli

kafka = embedded_kafka({"clicks": 3})

GOOD = """\
kafka: {servers: [%s]}
pipelines:
  checkpoints: %s
  jobs:
    - name: visits
      type: sessions
      from:
        topic: clicks
        value: {fields: {user: string, at: timestamp_ms}}
        time: at
      by: [user]
      to: {topic: visits}
    - name: again
      type: enrich
      from: {topic: visits, value: {fields: {user: string}}}
      on: user
      table: {kind: broadcast, path: /tmp/users, key: id, fields: {age: int}}
      to: {topic: rich, guarantee: at-least-once}
"""


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ["pipeline", *map(str, arguments)], prog_name="gateway")


@pytest.fixture
def written(tmp_path, kafka):
    """Writes the configuration, with changes, and gives its path."""

    def write(*changes, servers=None):
        text = GOOD % (servers or kafka.bootstrap[0], tmp_path / "checkpoints")
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        path = tmp_path / "gateway.yaml"
        path.write_text(text)
        return path

    return write


def test_what_is_right_is_ok_and_what_one_job_writes_another_may_read(written):
    path = written()
    found = invoke("check", "-c", path)
    assert (found.exit_code, found.output) == (0, f"{path}: 2 jobs: ok\n")


@pytest.mark.parametrize(
    ("before", "after", "place", "said"),
    [
        ("by: [user]", "by: [usr]", "11:11", "did you mean 'user'"),
        ("to: {topic: visits}", "to: {topic: visits, key: [usr]}", "12:32", "did you mean 'user'"),
        ("user: string, at", "user: strin, at", "9:32", "'strin' is no type of Spark SQL"),
        ("time: at", "time: when", "10:15", "no column 'when'; "),
        ("at: timestamp_ms", "at: bigint", "10:15", "'at' is of type bigint; make it"),
        ("at: timestamp_ms", "at: timestamp_ms, _key: string", "9:64", "a column of every record"),
        ("value: {fields: {user: string}}", "value: {}", "15:36", "JSON has no schema"),
        # Spark found them ambiguous, or the job ended by one of its own errors.
        ("user: string, at", "user: string, User: int, at", "9:16", "'user' and 'User' differ"),
        ("{user: string}}", "{user: string, _Key: int}}", "15:36", "'_Key' and '_key' differ"),
        ("age: int", "age: int, User: int", "17:67", "'user' and 'User' differ in case only"),
        ("age: int", "age: 'struct<a: int, A: int>'", "17:73", "'a' and 'A' differ in case only"),
        ("by: [user]", "by: [user]\n      measures: {End: count(*)}", "12:17", "'end' and 'End'"),
        (
            "topic: clicks",
            "topic: click",
            "8:16",
            "no topic 'click'; did you mean 'clicks'? If not",
        ),
        # The topic of a table was not looked for, and the job began again without end.
        ("path: /tmp/users, key: id", "topic: users", "17:39", "no topic 'users'; create it"),
        # Rows and dead letters, or entries of the ledger, were in one topic.
        ("topic: rich", "topic: clicks.late", "18:19", "job visits writes others than rows to"),
        ("topic: rich", "topic: visits.ledger", "18:19", "writes others than rows to"),
        ("from: {topic: visits", "from: {topic: visits.ledger", "15:21", "is the ledger of job"),
        # It named topics that were nothing like it, also those of Kafka itself.
        ("topic: clicks", "topic: payments", "8:16", "no topic 'payments'; create it"),
    ],
)
def test_problems_are_told_with_their_place(written, before, after, place, said):
    path = written((before, after))
    found = invoke("check", "-c", path)
    assert found.exit_code == 78
    line = next(line for line in found.output.splitlines() if said in line)
    assert line.startswith(f"{path}:{place}: pipelines.jobs["), line


@pytest.mark.parametrize(
    ("prefix", "exit_code"), [("'table:'", 78), ("'table:vip:'", 78), ("'tables:'", 0)]
)
def test_tables_that_share_keys_in_redis_are_refused(written, prefix, exit_code):
    """Rows of one table replaced those of the other, without a word."""
    load = """\
    - name: %s
      type: load
      from: {topic: clicks}
      into: {kind: redis, url: "redis://localhost", fields: {age: int}%s}
"""
    loads = load % ("users", "") + load % ("products", f", prefix: {prefix}")
    path = written(("    - name: again\n", f"{loads}    - name: again\n"))
    found = invoke("check", "-c", path)
    assert found.exit_code == exit_code, found.output
    assert ("begins with 'table:', the prefix of job users" in found.output) == bool(exit_code)


def test_realtime_is_refused_with_the_reason(written):
    path = written(("on: user", "on: user\n      trigger: realtime"))
    found = invoke("check", "-c", path)
    where = f"{path}:17:16: pipelines.jobs[1].trigger"
    assert f"{where}: this job cannot run in real time:" in found.output


def test_gateway_check_tells_the_same_without_a_network(written):
    path = written(("by: [user]", "by: [usr]"), servers="127.0.0.1:1")
    found = CliRunner().invoke(cli.app, ["check", str(path)], prog_name="gateway")
    assert found.exit_code == 78
    assert f"{path}:11:11: pipelines.jobs[0].by: " in found.output


def test_kafka_away_is_no_problem_of_the_file(written):
    path = written(servers="127.0.0.1:1")
    found = invoke("check", "-c", path, "--offline")
    assert (found.exit_code, found.output) == (0, f"{path}: 2 jobs: ok\n")


def test_a_job_that_is_not_there_is_told_with_the_nearest(written):
    found = invoke("check", "visit", "-c", written())
    assert found.exit_code == 1
    assert "there is no job 'visit'; did you mean 'visits'?" in found.output


def test_jobs_are_listed_with_how_far_they_are(written, tmp_path):
    (tmp_path / "checkpoints/visits/v2/commits").mkdir(parents=True)
    (tmp_path / "checkpoints/visits/v1").mkdir()
    (tmp_path / "checkpoints/visits/v2/commits/17").write_text("v1\n{}")
    found = invoke("list", "-c", written())
    assert found.output.splitlines() == [
        "NAME    KIND      FROM    TO      TRIGGER  GUARANTEE      STATE",
        "visits  sessions  clicks  visits  0s       exactly-once   v2, batch 17",
        "again   enrich    visits  rich    0s       at-least-once  new",
    ]


@pytest.mark.needs("process")
def test_without_java_nothing_but_running_is_lost(written, tmp_path):
    """`list` and `check` import neither pyspark nor pyarrow; `run` says what to install."""
    path = written()
    code = (
        "import sys\n"
        "from gateway.cli import main\n"
        f"sys.argv[1:] = ['pipeline', COMMAND, *ARGS, '-c', {str(path)!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    status = end.code\n"
        "bad = {'pyspark', 'pyarrow', 'pandas'} & {n.split('.')[0] for n in sys.modules}\n"
        "sys.exit(f'{bad} imported' if bad and COMMAND != 'run' else status)\n"
    )
    environment = {"PATH": "/nonexistent", "JAVA_HOME": str(tmp_path)}
    for command, arguments, status in (("list", [], 0), ("check", [], 0), ("run", ["all"], 1)):
        script = f"COMMAND, ARGS = {command!r}, {arguments!r}\n{code}"
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True
        )
        assert done.returncode == status, done.stderr
    assert "Spark 4.2.0 needs Java 17, and" in done.stderr
    assert "Traceback" not in done.stderr


def test_records_that_real_time_mode_does_not_tell_are_not_asked_for(written):
    query = """\
    - name: rich-clicks
      type: query
      trigger: realtime
      tables: {clicks: {topic: clicks, value: {fields: {user: string}}, %s}}
      sql: SELECT user FROM clicks
      to: {topic: few, guarantee: at-least-once}
    - name: again
"""
    asked = written(("    - name: again\n", query % "onInvalid: dead-letter"))
    found = invoke("check", "-c", asked, "--offline")
    assert found.exit_code == 78
    assert "tables.clicks.onInvalid: not available in real-time mode" in found.stderr
    path = written(("    - name: again\n", query % "onInvalid: skip"))
    assert invoke("check", "-c", path, "--offline").exit_code == 0


def test_settings_of_spark_that_contradict_the_state_are_refused(written):
    """They beat those of the job: its state had other partitions than its definition says, and
    times of rows were local ones."""
    conf = "  spark: {conf: {spark.sql.session.timeZone: %s, spark.sql.shuffle.partitions: '%s'}}\n"
    path = written(("pipelines:\n", "pipelines:\n" + conf % ("Europe/Berlin", 3)))
    found = invoke("check", "-c", path, "--offline")
    assert found.exit_code == 78
    assert "timeZone']: windows and the times of rows are in UTC; remove it" in found.stderr
    assert "shuffle.partitions']: a job's state.partitions sets it; remove it" in found.stderr
    path = written(("pipelines:\n", "pipelines:\n" + conf % ("utc", 2)))
    assert invoke("check", "-c", path, "--offline").exit_code == 0
