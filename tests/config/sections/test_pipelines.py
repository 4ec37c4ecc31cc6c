from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Pipelines, dumps, loads
from gateway.config.sections import pipelines
from gateway.errors import ConfigError

BEGIN = "kafka: {servers: [localhost:9092]}\n"
INPUT = "{topic: clicks, value: {fields: {user: string, at: timestamp}}, time: at}"
SESSIONS = f"{{name: visits, type: sessions, from: {INPUT}, by: [user], to: {{topic: visits}}}}"


def read(*jobs: str, begin: str = BEGIN) -> Pipelines:
    lines = "".join(f"    - {job}\n" for job in jobs)
    section = loads(f"{begin}pipelines:\n  jobs:\n{lines}").pipelines
    assert section is not None
    return section


AGGREGATE = f"{{name: a, type: aggregate, from: {INPUT}, window: {{size: 10s}}, to: {{topic: b}}"


def test_a_job_is_read_with_its_defaults_and_found_by_its_name():
    job = read(SESSIONS).find_job("visits")
    assert isinstance(job, pipelines.Sessions)
    assert (job.gap, job.max_length, job.emit, job.trigger) == (1800.0, None, "closed", 0.0)
    assert (job.from_.watermark, job.from_.on_data_loss, job.from_.late) == (600.0, "gap", "topic")
    assert (job.to.guarantee, job.to.writers, job.state.partitions) == ("exactly-once", 2, 2)
    assert read(SESSIONS).find_job("visit") is None


@pytest.mark.parametrize(
    ("trigger", "kept"), [("1s", 1.0), ("available-now", "available-now"), ("0s", 0.0)]
)
def test_a_trigger_is_a_time_or_a_word(trigger: str, kept: Any):
    (job,) = read(SESSIONS[:-1] + f", trigger: {trigger}}}").jobs
    assert job.trigger == kept


def test_what_was_read_is_written_as_it_can_be_read_again():
    settings = loads(f"{BEGIN}pipelines:\n  jobs:\n    - {SESSIONS}\n")
    assert loads(dumps(settings)).pipelines == settings.pipelines


@pytest.mark.parametrize(
    ("jobs", "what"),
    [
        ([SESSIONS.replace("sessions,", "session,")], "no kind of job; did you mean 'sessions'"),
        ([SESSIONS.replace("type: sessions,", "")], "'type' is missing; add one of sessions, join"),
        ([SESSIONS, SESSIONS], "'visits' is the name of jobs[0], too"),
        ([SESSIONS.replace("visits, type", "My_Job, type")], "'My_Job' is no name of a job"),
        ([SESSIONS[:-1] + ", trigger: realtime}"], "add guarantee: at-least-once"),
        ([SESSIONS[:-1] + ", trigger: soon}"], "such as 5s; or write realtime or available-now"),
        ([SESSIONS[:-1] + ", trigger: 1.5}"], "1.5 has no unit; write a number and a unit"),
        ([SESSIONS[:-1] + ", trigger: 5}"], "5 has no unit; write a number and a unit"),
        ([SESSIONS.replace("topic: visits", "topic: clicks")], "the job reads 'clicks', too"),
        ([SESSIONS.replace("clicks", "c" * 245)], "has 245 characters; take one of at most 244"),
        ([SESSIONS.replace("topic: visits", f"topic: {'v' * 243}")], "take one of at most 242"),
        ([SESSIONS.replace("topic: visits", "topic: v, kafka: x")], "unknown cluster 'x'"),
        ([SESSIONS.replace("topic: visits", "topic: v, model: avro")], "avro needs a schema"),
        (
            [SESSIONS.replace("value: {", "value: {model: avro, catalog: r, ")],
            "unknown catalog 'r'; add it to catalogs",
        ),
        ([SESSIONS.replace("by: [user]", "by: [user name]")], "'user name' is no name of a column"),
        (
            [SESSIONS.replace("user:", "'@user':")],
            "JSON of an input in jsonNames",
        ),
        (
            [SESSIONS.replace("value: {", "value: {jsonNames: {usr: '@user'}, ")],
            "'usr' is none of fields; did you mean 'user'?",
        ),
        (
            [SESSIONS.replace("value: {", "value: {jsonNames: {user: at}, ")],
            "'at' is another column, too",
        ),
        ([SESSIONS.replace("by: [user]", "by: []")], "is empty; add at least one"),
        ([AGGREGATE + "}"], "asks for nothing; use one of measures, top and distinct"),
        ([AGGREGATE + ", top: {of: user}, distinct: {of: user}}"], "asks for top and distinct"),
    ],
)
def test_what_cannot_work_is_told_with_what_to_do(jobs: list[str], what: str):
    with pytest.raises(ConfigError) as caught:
        read(*jobs)
    assert what in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_with_several_clusters_each_topic_names_its_own():
    begin = "kafka: {a: {servers: [a:1], topics: []}, b: {servers: [b:1], topics: []}}\n"
    with pytest.raises(ConfigError, match="'kafka' is missing, there are several; add one of a, b"):
        read(SESSIONS, begin=begin)
    named = SESSIONS.replace("topic: clicks", "topic: clicks, kafka: a")
    named = named.replace("topic: visits", "topic: visits, kafka: b")
    (job,) = read(named, begin=begin).jobs
    assert isinstance(job, pipelines.Sessions)
    assert (job.from_.kafka, job.to.kafka) == ("a", "b")


def test_the_value_of_a_variable_is_no_part_of_an_error(monkeypatch: pytest.MonkeyPatch):
    """A trigger that came from a variable was shown in the error, unlike other durations."""
    monkeypatch.setenv("TRIGGER", "secret-word")
    with pytest.raises(ConfigError) as caught:
        read(SESSIONS[:-1] + ", trigger: '${env.TRIGGER}'}")
    assert "secret-word" not in str(caught.value)
    assert "set it to such as 1s" in str(caught.value)
