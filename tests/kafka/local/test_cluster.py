"""Starting and ending local clusters, and what they leave behind: nothing."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from support.admin import KafkaAdmin
from support.local_kafka import RiggedKafka
from support.records import produce_records
from support.requirements import skip_or_fail

from gateway.errors import LocalBrokerError
from gateway.kafka.local import LocalKafka, java
from gateway.kafka.local.node import ReservedPort

pytestmark = pytest.mark.needs("kafka")


@pytest.fixture(autouse=True)
def installed():
    try:
        java.load_kafka_jars().ensure_fetched(java.kafka_cache_path())
        java.find_java()
    except LocalBrokerError as error:
        skip_or_fail(str(error))


async def test_one_node_lives_as_long_as_its_context():
    async with LocalKafka() as kafka:
        (node,) = kafka.nodes
        process = psutil.Process(node.pid)
        assert node.fetch_broker_ids() == {1}
        directory = node.directory
    assert not process.is_running()
    assert not directory.parent.exists()


def test_it_is_gone_when_the_block_raises():
    with pytest.raises(RuntimeError), LocalKafka() as kafka:
        process = psutil.Process(kafka.nodes[0].pid)
        raise RuntimeError
    assert not process.is_running()


async def test_kept_data_is_there_at_the_next_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with LocalKafka(data=Path("kept")) as kafka:
        KafkaAdmin(kafka.bootstrap).create_topic("orders")
        await produce_records(kafka.bootstrap, "orders", [b"kept"])
    async with LocalKafka(data=tmp_path / "kept") as kafka:
        reader = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")
        async with reader, asyncio.timeout(30):
            reader.assign([TopicPartition("orders", 0)])
            assert (await reader.getone()).value == b"kept"


async def test_clients_that_come_through_a_proxy_stay_behind_it():
    proxy = ("127.0.0.1", 19092)  # only said, nobody listens there
    seen = {}
    async with RiggedKafka(advertised=lambda node: proxy) as kafka:
        plain, via = kafka.nodes[0].ports["PLAINTEXT"], kafka.nodes[0].ports["VIA"]
        for port in (plain, via):
            # This client talks to the bootstrap server alone; librdkafka's also connects to the
            # advertised one, and its request may fail with that.
            client = AIOKafkaClient(bootstrap_servers=f"127.0.0.1:{port}")
            try:
                await client.bootstrap()
                seen[port] = [broker.port for broker in client.cluster.brokers()]
            finally:
                await client.close()
    assert seen == {plain: [plain], via: [19092]}


def test_a_wrong_property_fails_with_the_end_of_the_log():
    with pytest.raises(LocalBrokerError, match=r"(?s)node 1 .*num.io.threads"):
        LocalKafka(properties={"num.io.threads": "none"}).start()


def test_a_taken_port_is_told_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LocalBrokerError, match=f"port {port} .* is taken"):
            LocalKafka(port=port).start()


def test_a_port_asked_for_is_the_one_it_has_after_a_restart_too():
    port = ReservedPort()
    port.release()
    with LocalKafka(port=port.number) as kafka:
        kafka.nodes[0].kill()
        kafka.nodes[0].start()
        kafka.wait_ready()
        assert kafka.bootstrap == [f"127.0.0.1:{port.number}"]
        assert kafka.nodes[0].fetch_broker_ids() == {1}


def test_a_failed_start_leaves_no_directory(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(LocalBrokerError):
        LocalKafka(port=taken.getsockname()[1]).start()
    assert list(tmp_path.iterdir()) == []


def test_two_nodes_are_no_cluster():
    with pytest.raises(LocalBrokerError, match="1 or 3 nodes, not 2"):
        LocalKafka(2)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_no_broker_outlives_the_process_that_started_it(end, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # its directory does outlive it
    code = (
        "import time; from gateway.kafka.local import LocalKafka\n"
        "kafka = LocalKafka(); kafka.start(); print(kafka.nodes[0].pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with running_python(code) as parent:
        broker = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, end)
        psutil.wait_procs([broker], timeout=20)
        assert not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_its_address_and_ends_when_told(end):
    with running_python("from gateway.kafka.local import run_broker; run_broker()") as command:
        first = command.stdout.readline()
        assert first.startswith("bootstrap: 127.0.0.1:")
        assert KafkaAdmin([first.split()[1]]).client.list_topics(timeout=20).brokers
        command.send_signal(end)
        assert "^C ends it" in command.stdout.read()
        assert command.stderr.read().strip() == "stopped"
        assert command.wait(20) == 0


def test_a_node_of_three_that_is_killed_is_started_again():
    """It ended all three, so that nobody could try a failover with the command."""
    code = "from gateway.kafka.local import run_broker; run_broker(3, restart_delay_s=0.5)"
    with running_python(code) as command:
        servers = command.stdout.readline().split()[1]
        command.stdout.readline()
        pids = re.findall(r"(\d): (\d+)", command.stdout.readline())
        os.kill(int(dict(pids)["2"]), signal.SIGKILL)
        assert command.stdout.readline() == "node 2 ended; it is started again in 0.5 s\n"
        assert command.stdout.readline().startswith("node 2 was started again: pid ")
        admin = KafkaAdmin(servers.split(","))
        admin.wait_in_sync()
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 0


@contextmanager
def running_python(code):
    """A Python that runs `code`; it ends with the block."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        try:
            yield process
        finally:
            process.kill()
