"""`gateway replay` asks a sidecar that runs."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from support.commands import run_command
from support.dead_letters import read_committed
from support.fork_server import run_forked
from support.sidecars import running_sidecar, wait_until_ready


async def replay(*arguments: str) -> tuple[int, str, str]:
    done = await asyncio.to_thread(run_forked, "replay", *arguments)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.needs("process")
async def test_one_is_started_awaited_listed_and_too_late_to_be_cancelled(kafka):
    source, target = kafka.create_unique_topic(), kafka.create_unique_topic()
    section = {"topic": f"replays-{random.getrandbits(40):x}"}
    async with running_sidecar(kafka.bootstrap, replay=section, producer={}) as http:
        await wait_until_ready(http)
        records = [{"value": "YQ=="}] * 5
        written = await http.post(f"/producers/{source}", json={"records": records})
        assert written.status_code == 200, written.text
        url = str(http.base_url)
        code, out, err = await replay(
            "start", source, "--to-topic", target, "--partition", "0", "--from", "2", "--wait",
            "--url", url,
        )  # fmt: skip
        assert code == 0, err
        id = out.strip()
        assert f"{id}  done  {source} to {target}  100%  3 records" in err
        listed = await replay("list", "--url", url)
        assert listed[1].startswith(f"{id}  done")
        shown = await replay("show", id, "--url", url)
        assert json.loads(shown[1])["delivery"] == "exactly-once"
        code, _, err = await replay("cancel", id, "--url", url)
        assert (code, "is done already" in err) == (1, True)
    assert [each.value() for each in read_committed(kafka, target)] == [b"a"] * 3


async def test_a_slip_of_usage_and_a_sidecar_that_is_not_there_are_said():
    assert (await run_command("replay", "start", "orders")).exit_code == 2
    result = await run_command("replay", "list", "--url", "http://127.0.0.1:1")
    assert (result.exit_code, "no sidecar answers" in result.stderr) == (1, True)
