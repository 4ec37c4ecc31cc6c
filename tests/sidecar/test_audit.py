from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import ClassVar

from support.brokers import embedded_kafka
from support.oracle import read_records
from support.sidecars import running_sidecar
from support.tasks import running_task
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition
from gateway.kafka.client.outages import Outages
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata
from gateway.sidecar.audit import MAX_QUEUED_BYTES, MAX_QUEUED_RECORDS, AuditComponent
from gateway.sidecar.context import AuditEvent
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

kafka = embedded_kafka({"sidecar-audit": 3, "orders": 1})


async def test_records_of_back_ends_are_in_the_topic_in_the_contracts_form(kafka):
    async with running_sidecar(kafka.bootstrap, audit={}) as http:
        entries = [
            {"topic": "orders", "partition": 0, "offset": 7, "key": "k", "correlationId": "c1"},
            {
                "record": {"topic": "orders", "partition": 0, "offset": 8, "key": "l"},
                "processed": False,
                "stacktrace": "it broke",
            },
        ]
        ids = {"X-Correlation-Id": "c2", "X-Traceability-Id": "t2"}
        answer = await http.post("/consumers/active/audit", json=entries, headers=ids)
        assert (answer.status_code, answer.json()) == (202, {"accepted": 2})
        records = await read_records(",".join(kafka.bootstrap), "sidecar-audit", min_records=2)
    audit_records = [json.loads(record.value or b"") for record in records]
    by_offset = {entry["offset"]: entry for entry in audit_records}
    assert by_offset[7]["auditStatus"] == "SUCCESS"
    assert by_offset[7]["correlationId"] == "c1"
    expected = {
        **{"serviceId": "test", "auditType": "ACTIVE_CONSUMER", "topic": "orders"},
        **{"partition": 0, "offset": 8, "key": "l", "auditStatus": "FAILURE"},
        **{"stacktrace": "it broke", "correlationId": "c2", "traceabilityId": "t2"},
    }
    assert {name: by_offset[8][name] for name in expected} == expected
    assert by_offset[8].keys() == expected.keys() | {"id", "timestamp"}


async def test_a_request_that_is_no_audit_is_refused(kafka):
    async with running_sidecar(kafka.bootstrap, audit={}) as http:
        for body in ({"topic": "orders"}, [{"auditStatus": "MAYBE"}], [{"record": 1}]):
            answer = await http.post("/consumers/active/audit", json=body)
            assert answer.status_code == 400, body


async def test_one_that_cannot_be_written_is_refused_and_holds_up_no_other(kafka):
    """It was tried for ever, also at the end of the sidecar, which never came."""
    deep: object = "k"
    for _ in range(300):
        deep = [deep]
    async with running_sidecar(kafka.bootstrap, audit={}) as http:
        for record in ({"key": deep}, {"offset": 1e30}, {"partition": 2.0**31}):
            answer = await http.post("/consumers/active/audit", json=[{"offset": 1}, record])
            assert answer.status_code == 400, record
            assert answer.json()["message"].startswith("[1]")


async def test_a_file_has_a_record_a_line(kafka, tmp_path):
    file = tmp_path / "audit.log"
    async with running_sidecar(kafka.bootstrap, audit={"to": "log", "file": str(file)}) as http:
        await http.post("/consumers/active/audit", json=[{"offset": 1}, {"offset": 2}])
        await wait_until(
            lambda: file.exists() and len(file.read_text().splitlines()) == 2, "two lines"
        )
    assert [json.loads(line)["offset"] for line in file.read_text().splitlines()] == [1, 2]


class FakeContext:
    """As much of the sidecar's as an audit without Kafka needs."""

    class section:
        class audit:
            to, topic, file = "log", "sidecar-audit", None

    class settings:
        name = "test"

    spec: ClassVar = {"auditActive": None}


async def test_nobody_waits_for_an_audit_and_what_is_too_much_is_counted(caplog):
    audits = AuditComponent(FakeContext())  # type: ignore[arg-type]
    for offset in range(MAX_QUEUED_RECORDS + 2):
        audits.record(AuditEvent("PRODUCER", TopicPartition("orders", 0), offset, b"\xff\xfe"))
    assert audits.outcomes == {"dropped": 2}
    assert caplog.text.count("were dropped") == 1
    caplog.set_level("INFO")
    async with running_task(audits.run()):
        await wait_until(
            lambda: audits.outcomes["written"] == MAX_QUEUED_RECORDS, "those that were waiting"
        )
    lines = [message for message in caplog.messages if message.startswith("audit {")]
    audit_records = [json.loads(line.removeprefix("audit ")) for line in lines]
    assert [entry["offset"] for entry in audit_records] == [*range(MAX_QUEUED_RECORDS)]
    assert (audit_records[0]["key"], audit_records[0]["keyFormat"]) == ("//4=", "binary")
    figures = MetricSamples()
    audits.collect_metrics(figures)
    assert figures[catalog.AUDIT_RECORDS] == {
        ("dropped",): 2,
        ("written",): MAX_QUEUED_RECORDS,
        ("failed",): 0,
    }


async def test_an_event_that_is_no_json_takes_no_other_along(caplog):
    """The component ended with it, and all that were in its batch were in no count."""
    caplog.set_level("INFO")
    audits = AuditComponent(FakeContext())  # type: ignore[arg-type]
    for offset in (1, 1 << 64, 2):
        audits.record(AuditEvent("PRODUCER", TopicPartition("orders", 0), offset))
    async with running_task(audits.run()):
        await asyncio.sleep(0)  # what is left is written at the end
    assert audits.outcomes == {"failed": 1, "written": 2}
    assert "one cannot be written" in caplog.text


async def test_what_waits_at_the_end_is_still_handed_on(tmp_path):
    class LoggingContext(FakeContext):
        class section:
            class audit:
                to, topic, file = "log", "sidecar-audit", str(tmp_path / "audit.log")

    audits = AuditComponent(LoggingContext())  # type: ignore[arg-type]
    async with running_task(audits.run()):
        await asyncio.sleep(0)
        for offset in range(1200):
            audits.record(AuditEvent("REACTIVE_CONSUMER", TopicPartition("orders", 0), offset))
    audit_records = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [entry["offset"] for entry in audit_records] == list(range(1200))
    assert {entry["auditType"] for entry in audit_records} == {"REACTIVE_CONSUMER"}


async def test_all_that_wait_are_handed_to_kafka_in_few_batches():
    """500 were written after each answer of Kafka, each by itself: under load some were dropped."""
    batches = []

    class Producer:
        async def send_many(self, records, *, timeout_s):
            batches.append(len(records))
            return [0] * len(records)

    class TopicContext(FakeContext):
        class section:
            class audit:
                to, topic, file = "topic", "sidecar-audit", None

        producer = Producer()
        cluster = SimpleNamespace(outages=Outages(time.monotonic))

        async def get_topic(self, name):
            return TopicMetadata(name, None, 0, {0: PartitionMetadata(0, 1, (), (), 0)})

    audits = AuditComponent(TopicContext())  # type: ignore[arg-type]
    for offset in range(MAX_QUEUED_RECORDS):
        audits.record(AuditEvent("PRODUCER", TopicPartition("orders", 0), offset, b"k"))
    async with running_task(audits.run()):
        await wait_until(lambda: sum(batches) == MAX_QUEUED_RECORDS, "all")
    assert len(batches) == 5
    assert audits.outcomes == {"written": MAX_QUEUED_RECORDS}


def test_what_happens_in_the_audit_topic_is_not_audited():
    """A group that read the topic made a record of each record, without end."""

    class TopicContext(FakeContext):
        class section:
            class audit:
                to, topic, file = "topic", "sidecar-audit", None

    audits = AuditComponent(TopicContext())  # type: ignore[arg-type]
    for topic, dropped in (("sidecar-audit", {}), ("orders", {"dropped": 1})):
        for offset in range(MAX_QUEUED_RECORDS + 1):
            audits.record(AuditEvent("REACTIVE_CONSUMER", TopicPartition(topic, 0), offset))
        assert audits.outcomes == dropped


async def test_records_that_wait_are_bounded_by_their_bytes():
    """10,000 of them, with keys of 1 MB, were kept while Kafka was away."""
    audits = AuditComponent(FakeContext())  # type: ignore[arg-type]
    for offset in range(100):
        audits.record(AuditEvent("PRODUCER", TopicPartition("orders", 0), offset, b"k" * 10**6))
    assert audits.outcomes == {"dropped": 100 - MAX_QUEUED_BYTES // 10**6}
    async with running_task(audits.run()):
        await wait_until(lambda: audits.outcomes["written"] == 16, "those that were waiting")
        audits.record(AuditEvent("PRODUCER", TopicPartition("orders", 0), 100, b"k" * 10**6))
        await wait_until(lambda: audits.outcomes["written"] == 17, "one more")
    async with running_sidecar(["127.0.0.1:1"], audit={}) as http:
        statuses = [
            (await http.post("/consumers/active/audit", json=[{"key": "k" * 900_000}])).status_code
            for _ in range(30)
        ]
    assert statuses == sorted(statuses)
    assert 18 <= statuses.count(202) <= 21  # some are on their way
    assert statuses.count(202) + statuses.count(503) == 30


async def test_records_that_are_written_by_lines_are_audited(kafka, tmp_path):
    """Whoever did not want to be in the audit sent NDJSON."""
    file = tmp_path / "audit.log"
    sections = {"audit": {"to": "log", "file": str(file)}, "producer": {"valueFormat": "json"}}
    async with running_sidecar(kafka.bootstrap, **sections) as http:
        headers = {"content-type": "application/x-ndjson"}
        answer = await http.post("/producers/orders", content=b'{"value": 1}\n', headers=headers)
        assert answer.status_code == 200, answer.text
        await wait_until(lambda: file.exists() and "PRODUCER" in file.read_text(), "the audit")
