from __future__ import annotations

import json
import uuid

from support.oracle import read_records
from support.sidecars import running_sidecar, wait_until_ready
from support.waiting import wait_until


async def test_a_missing_topic_is_created_and_no_record_is_lost(kafka):
    name = f"audit-{uuid.uuid4().hex[:12]}"
    kafka.topics.append(name)  # goes with the test
    async with running_sidecar(kafka.bootstrap, audit={"topic": name}) as http:
        await wait_until_ready(http)
        for offset in range(3):
            answer = await http.post("/consumers/active/audit", json=[{"offset": offset}])
            assert answer.status_code == 202
        await wait_until(lambda: kafka.admin.topic_exists(name), "the topic", 60, interval_s=0.1)
        records = await read_records(",".join(kafka.bootstrap), name, min_records=3, timeout_s=60)
    offsets = sorted(json.loads(record.value or b"")["offset"] for record in records)
    assert offsets == [0, 1, 2]
