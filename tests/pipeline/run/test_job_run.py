"""A job's query, begun again where that may help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from support.waiting import block_until

from gateway.config.sections.pipelines import Sessions
from gateway.errors import CheckpointRefused, PipelineUnavailable
from gateway.pipeline.clusters import TopicMissing
from gateway.pipeline.exactly_once.input_topics import build_recreated_error
from gateway.pipeline.exactly_once.writer_plan import PlanSuperseded
from gateway.pipeline.failures import TIMESTAMP_ADVICE, ExceptionCause
from gateway.pipeline.run.job_run import STEADY_AFTER_S, JobRun
from gateway.pipeline.run.runner import choose_status, poll_runs, stop_on_signals, stop_runs

VALUE = {"fields": {"user": "string"}}
JOB = Sessions.model_validate(
    {
        **{"name": "visits", "type": "sessions", "by": ["user"], "to": {"topic": "visits"}},
        "from": {"topic": "clicks", "value": VALUE},
    }
)
AWAY = [ExceptionCause("org.apache.kafka.common.errors.TimeoutException", "away")]
RECORD = "Record at topic clicks partition 0 offset 7 has timestamp value 99 that overflows"
UNREADABLE = [ExceptionCause("org.apache.spark.sql.kafka010.KafkaIllegalStateException", RECORD)]
WRONG = [
    ExceptionCause(
        "org.apache.spark.SparkArithmeticException", "[DIVIDE_BY_ZERO] Division by zero."
    )
]


def test_a_job_that_was_stopped_before_it_had_read_all_has_not_succeeded():
    """A Kubernetes Job whose pod was drained counted as complete."""
    until_end = JOB.model_copy(update={"trigger": "available-now"})
    assert choose_status([JOB, until_end], has_failed=False) == 143
    assert choose_status([JOB], has_failed=False) == 0
    assert choose_status([until_end], has_failed=True) == 1


class Query:
    def __init__(self):
        self.isActive, self.stopped, self.retired, self.busy = True, False, False, 0
        self.chain: list[ExceptionCause] = []

    def is_idle(self):
        self.busy -= 1
        return self.busy < 0

    def stop(self):
        self.isActive, self.stopped = False, True

    def ends(self, *chain):
        self.isActive, self.chain = False, list(chain)


class World:
    """A clock, and the queries that were begun. raises: what the next start meets."""

    def __init__(self):
        self.now, self.queries, self.raises = 0.0, [], []

    def start(self, _run):
        if self.raises:
            raise self.raises.pop(0)
        self.queries.append(Query())
        return self.queries[-1]


@pytest.fixture
def world():
    return World()


@pytest.fixture
def run(world):
    return made(world)


def made(world, job=JOB, **more):
    def retire(query):
        query.retired = True

    waits = lambda query: query.busy <= 0  # noqa: E731
    hooks = {"retire": retire, "is_waiting": waits, "is_idle": Query.is_idle}
    hooks["list_causes"] = lambda query: query.chain
    return JobRun(job, world.start, lambda: world.now, **hooks, **more)


def test_a_query_that_ends_by_itself_is_done(world, run):
    run.poll()
    run.poll()
    world.queries[0].ends()
    run.poll()
    assert (run.is_done, run.failure_reason, len(world.queries)) == (True, None, 1)


def test_kafka_away_is_waited_for_longer_each_time(world, run):
    waits = []
    for _ in range(9):
        run.poll()
        world.queries[-1].ends(*AWAY)
        run.poll()
        assert not run.is_done
        began, count = world.now, len(world.queries)
        while len(world.queries) == count:
            world.now += 0.5
            run.poll()
        waits.append(world.now - began)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert not run.is_done


def test_after_a_steady_time_the_wait_is_short_again(world, run):
    for steady in (0, STEADY_AFTER_S + 1):
        run.poll()
        world.now += steady
        world.queries[-1].ends(*AWAY)
        run.poll()
        world.now += 1
        run.poll()
    assert len(world.queries) == 3


@pytest.mark.parametrize("trigger", [0.0, "available-now", "realtime"])
def test_a_record_that_spark_cannot_read_ends_the_job(world, trigger):
    run = made(world, JOB.model_copy(update={"trigger": trigger}))
    run.poll()
    world.queries[0].ends(*UNREADABLE)
    run.poll()
    assert (run.is_done, run.failure_reason) == (True, f"{RECORD}; {TIMESTAMP_ADVICE}")


def test_a_recreated_topic_ends_the_job_and_not_in_the_middle_of_a_batch(world):
    """Batches that end in Python compare the topics themselves."""
    error = build_recreated_error("clicks")
    run = made(world, find_recreated=lambda: error)
    run.poll()
    world.queries[0].busy = 1
    run.poll()
    assert not run.is_done
    world.queries[0].busy = 0
    run.poll()
    assert (run.is_done, run.failure_reason) == (True, str(error))
    assert world.queries[0].stopped


def test_a_topic_that_is_recreated_while_the_job_waits_for_it_ends_the_job(world, run):
    world.raises = [TopicMissing("topic clicks does not exist"), build_recreated_error("clicks")]
    run.poll()
    assert not run.is_done
    world.now += 1
    run.poll()
    assert run.failure_reason == str(build_recreated_error("clicks"))


def test_wrong_data_ends_the_job_with_its_reason(world, run):
    run.poll()
    world.queries[0].ends(*WRONG)
    run.poll()
    assert run.is_done
    assert run.failure_reason == "SparkArithmeticException: Division by zero."


def test_a_refused_checkpoint_ends_it_and_kafka_that_does_not_answer_is_waited_for(world, run):
    world.raises = [
        PipelineUnavailable("Kafka at x:1 does not answer: no"),
        CheckpointRefused("other"),
    ]
    run.poll()
    assert not run.is_done
    world.now += 1
    run.poll()
    assert (run.is_done, run.failure_reason) == (True, "other")


def test_state_is_inspected_unless_the_error_by_which_it_was_not_read_may_pass(world, run):
    """The lock of a store ended the job: no file was damaged, and `--fresh` was advised."""
    load = "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state."
    state = ExceptionCause(
        "org.apache.spark.sql.execution.streaming.state.StateStoreException", load
    )
    for causes, inspected in (([state, *AWAY], False), ([state], True)):
        run.poll()
        world.queries[-1].ends(*causes)
        run.poll()
        assert (bool(run.state_error), run.is_done) == (inspected, False)
        world.now += 60


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        (
            "[CONCURRENT_STREAM_LOG_UPDATE] ",
            "Concurrent update to the log. Multiple streaming jobs detected for 2.",
        ),
        ("", "Multiple streaming queries are concurrently using file:/checkpoint/offsets."),
    ],
)
def test_of_two_processes_that_begin_one_batch_the_one_that_runs_the_job_begins_again(
    world, condition, said
):
    """Spark ended it, as the other had written the batch's offsets first, and the ledger ended the
    other: nobody ran the job any more."""

    def was_replaced() -> bool:
        raise PlanSuperseded("the writers were taken over")

    cause = ExceptionCause("org.apache.spark.SparkException", f"{condition}{said}")
    reasons = []
    for ensure_ownership in (lambda: True, lambda: False, was_replaced):
        run = made(world, ensure_ownership=ensure_ownership)
        run.poll()
        world.queries[-1].ends(cause)
        run.poll()
        reasons.append(run.failure_reason)
    superseded = "{0} PlanSuperseded: the writers were taken over"
    assert reasons == [None, said, superseded.format(said)]


def test_a_query_has_not_ended_before_the_batch_that_retired_it(world):
    """Its late and invalid records were looked for while Spark still committed it."""
    finished = []
    run = made(world, finish=lambda: finished.append(1))
    run.poll()
    world.queries[0].busy = 1
    world.queries[0].ends()
    run.poll()
    assert (finished, run.is_done) == ([], False)
    run.poll()
    assert (finished, run.is_done) == ([1], True)


def test_a_query_that_a_signal_retires_while_another_job_is_polled_has_not_read_all(world):
    """Its process ended with status 0, so that a Kubernetes Job counted as complete."""
    stop = threading.Event()

    def finish():
        stop.set()
        world.queries[1].ends()  # by its batch

    runs = [made(world, finish=finish), made(world)]
    for run in runs:
        run.poll()
    world.queries[0].ends()
    poll_runs(runs, stop, interval_s=0)
    assert [run.is_done for run in runs] == [True, False]


def test_what_is_left_is_done_once_a_query_has_ended_by_itself(world):
    """Where that fails the query is begun again, as after any other failure."""
    fails, finished = [PipelineUnavailable("Kafka is away")], []

    def finish():
        if fails:
            raise fails.pop()
        finished.append(1)

    run = made(world, finish=finish)
    run.poll()
    world.queries[0].ends()
    run.poll()
    assert not run.is_done
    world.now += 1
    run.poll()
    world.queries[1].ends()
    run.poll()
    assert (run.is_done, run.failure_reason, finished) == (True, None, [1])


def test_what_is_held_is_let_go_with_the_job(world, run):
    let_go = []
    run.resources.callback(let_go.append, 1)
    run.poll()
    world.queries[0].ends(*AWAY)
    run.poll()
    assert not let_go
    run.stop()
    run.end(is_over=True)
    assert let_go == [1]


def test_a_batch_under_way_is_waited_for_and_not_for_ever(world, run):
    run.poll()
    world.queries[0].busy = 3
    stop_runs([run], timeout_s=30)
    assert world.queries[0].stopped
    assert world.queries[0].retired
    assert world.queries[0].busy < 0
    other = made(world)
    other.poll()
    world.queries[1].busy = 10**9
    stop_runs([other], timeout_s=0)
    assert world.queries[1].stopped


@pytest.mark.parametrize("error", [None, PipelineUnavailable("Kafka is away")])
def test_what_is_left_is_done_before_the_process_ends_by_a_signal(world, error):
    """The next start did it, by other settings if they had changed: dead letters were lost."""
    finished = []

    def finish():
        finished.append([query.stopped for query in world.queries])
        if error:
            raise error

    runs = [made(world, finish=finish), made(world, finish=finish)]
    runs[0].poll()
    runs[0].poll()
    stop_runs(runs, timeout_s=30)
    assert finished == [[True]]  # the other one has begun nothing
    assert all(run.is_done and run.failure_reason is None for run in runs)
    late = made(world, finish=finish)
    late.poll()
    stop_runs([late], timeout_s=0)
    assert len(finished) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_heard_between_two_looks_at_the_jobs(world, number):
    job = JobRun(JOB, world.start)
    with stop_on_signals() as told:
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        poll_runs([job], told, interval_s=1e6)
    assert world.queries
    assert not job.is_done


@pytest.mark.needs("process")
@pytest.mark.parametrize("timeout_s", [0.1, 1e6])
def test_a_process_that_waits_in_a_call_of_c_ends_by_signals(timeout_s):
    """Python runs no handler then: librdkafka's calls held the process for minutes. The second
    signal ends it at once, the first in the time that is given. By 0, Kubernetes took a Job for
    complete that was stopped while Redis was away."""
    call = f"""
import hashlib
from gateway.pipeline.run.runner import stop_on_signals
with stop_on_signals(exit_timeout_s={timeout_s}):
    print("waits", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""
    with subprocess.Popen([sys.executable, "-c", call], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"waits\n"
            process.send_signal(signal.SIGTERM)
            if timeout_s > 1:  # signals that come together are one
                block_until(
                    lambda: process.send_signal(signal.SIGTERM) or process.poll(), "the end"
                )
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()


def test_a_query_that_waits_for_records_does_what_is_left(world):
    """What an idle topic's last batch had left waited for a next batch, which never came."""
    calls = []
    run = JobRun(
        JOB,
        world.start,
        lambda: world.now,
        is_waiting=lambda query: query.is_idle(),
        on_waiting=lambda: calls.append(1),
    )
    run.poll()
    world.queries[0].busy = 1
    run.poll()
    assert not calls
    run.poll()
    assert calls
