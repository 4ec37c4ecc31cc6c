"""Many clients without sockets, at a tiny size: every phase is measured, and all come back."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from support.brokers import embedded_kafka

from bench.peers.peer import ROOT
from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"crowd": 1})
PHASES = ["open", "records", "idle", "scrape", "list", "drain", "return"]


@pytest.mark.night
@pytest.mark.parametrize("own_keys", [False, True])
async def test_each_count_of_clients_is_measured(kafka: EmbeddedKafka, own_keys: bool):
    options = {
        "servers": ",".join(kafka.bootstrap), "topic": "crowd", "counts": [20, 40],
        "own_keys": own_keys, "records": 2, "idle_s": 0.1,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.crowded_gateway", json.dumps(options)),
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    results = [json.loads(line) for line in output.splitlines()]
    assert [each["clients"] for each in results] == [20, 40]
    assert all(list(each["phases"]) == PHASES for each in results)
    # With very many clients a full collection takes seconds, so they must leave nothing for it. A
    # scrape and a list leave some.
    assert results[1]["garbage"] < results[0]["garbage"] + 20
