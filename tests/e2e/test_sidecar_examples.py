"""The back ends of examples/sidecar, each run by the lines of its README beside a real Kafka."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.brokers import KafkaCluster
from support.dead_letters import read_committed
from support.demo import START_TIMEOUT_S
from support.ports import find_free_port
from support.shell import ShellProcess, running_shell

EXAMPLE = Path(__file__).parents[2] / "examples" / "sidecar"
LINES = re.findall(r"^    (\S.*)", (EXAMPLE / "README.md").read_text(), re.M)
TOPICS = ("orders", "receipts")


def lines_of(first: str) -> list[str]:
    return [line for line in LINES if line.startswith(first)]


class Setting:
    """A clone with the example on ports of its own."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.ports = {port: find_free_port() for port in ("8081", "8090")}
        self.folder = folder
        shutil.copytree(EXAMPLE, folder / "examples" / "sidecar")
        config = folder / "examples" / "sidecar" / "sidecar.yaml"
        config.write_text(self.moved(config.read_text()))
        self.environment = {
            "KAFKA": servers,
            "GATEWAY_KAFKA_SERVERS": servers,
            "SIDECAR": self.url("8090"),
            "PORT": str(self.ports["8081"]),
        }

    def url(self, port: str) -> str:
        return f"http://127.0.0.1:{self.ports[port]}"

    def moved(self, text: str) -> str:
        for old, new in self.ports.items():
            text = text.replace(old, str(new))
        return text

    def shell(self, line: str) -> Any:
        return running_shell(self.moved(line), self.folder, **self.environment)

    async def said(self, line: str) -> str:
        async with self.shell(f"{line} -sS" if line.startswith("curl") else line) as running:
            assert await running.wait_ended(START_TIMEOUT_S) == 0, running.output
        return str(running.output)


async def answers(url: str, running: ShellProcess) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=START_TIMEOUT_S) as http:

        async def up() -> bool:
            try:
                return (await http.get(url)).status_code == 200
            except httpx.TransportError:
                return False

        while not await up():
            assert not running.is_ended, running.output
    assert not running.is_ended, running.output


@pytest.mark.parametrize(
    "first", ["uvicorn", pytest.param("node", marks=pytest.mark.needs("node"))]
)
@pytest.mark.needs("curl")
async def test_a_back_end_gets_its_orders_and_says_which_it_cannot_process(
    kafka: KafkaCluster, tmp_path: Path, first: str
):
    for topic in TOPICS:
        kafka.create_topic(topic, 1)
    setting = Setting(tmp_path, kafka.bootstrap_servers)
    (back_end,) = lines_of(first)
    (line,) = lines_of("gateway sidecar")
    try:
        for produce in lines_of("echo"):
            await setting.said(produce)
        async with setting.shell(back_end) as backend, setting.shell(line) as sidecar:
            await answers(f"{setting.url('8081')}/health", backend)
            await answers(f"{setting.url('8090')}/health/readiness", sidecar)
            *orders, totals, group, letters = lines_of("curl")
            for order in orders:
                (written,) = json.loads(await setting.said(order))["offsets"]
                assert written["partition"] == 0, written
            while "stacktrace" not in (said := await setting.said(letters)):
                assert not backend.is_ended and not sidecar.is_ended, (
                    backend.output + sidecar.output
                )
            (letter,) = json.loads(said)
            assert letter["value"]["order"] == "B-1" and "B-1 costs 0" in letter["stacktrace"]
            assert json.loads(await setting.said(totals)) == {"ada": 9}
            assert json.loads(await setting.said(group))["group"] == "shop"
            assert "B-1 costs 0" in await setting.said(lines_of("gateway dlq show")[0])
            sidecar.process.send_signal(signal.SIGTERM)
            assert await sidecar.wait_ended(START_TIMEOUT_S) == 0, sidecar.output
        wanted = [3.0, 6.0] if first == "uvicorn" else []
        receipts = [json.loads(each.value())["total"] for each in read_committed(kafka, "receipts")]
        assert receipts[1:] == wanted
    finally:
        if kafka.admin.topic_exists("orders.dlq"):
            kafka.admin.delete_topic("orders.dlq")
