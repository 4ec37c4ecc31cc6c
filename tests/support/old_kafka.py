"""Run one broker of an older Kafka, from Maven's jars, with the ZooKeeper that it needs.

Kafka 4 has no ZooKeeper any more, and Kafka 2.8 no KRaft with transactions, so this is apart from
`LocalKafka`. The jars and their checksums are in `kafka-VERSION.sha256`; they are fetched once.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from gateway.errors import LocalBrokerError
from gateway.kafka.local.java import JVM_FLAGS, JarBundle, cache_path, find_java, read_pins
from gateway.kafka.local.node import KafkaNode, ReservedPort

OldVersion = Literal["2.8.2", "3.9.1"]
START_TIMEOUT_S = 60.0

_PINS_DIRECTORY = Path(__file__).parent
_ZOOKEEPER_PROPERTIES = {
    "clientPortAddress": "127.0.0.1",
    "admin.enableServer": "false",
    "maxClientCnxns": "0",
}
_BROKER_PROPERTIES = {
    "broker.id": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "zookeeper.session.timeout.ms": "2000",
}


class OldKafka:
    """A broker and its ZooKeeper, which end with the block.

    Args:
        version: The version of Kafka.

    Attributes:
        version: The version of Kafka.
        broker: The broker, which can be killed and started again.
    """

    def __init__(self, version: OldVersion) -> None:
        self.version = version
        pins = read_pins(_PINS_DIRECTORY / f"kafka-{version}.sha256")
        bundle = JarBundle(f"Kafka {version}", pins, LocalBrokerError)
        libs = bundle.ensure_fetched(cache_path(f"kafka-{version}"))
        self._java = [str(find_java().path), *JVM_FLAGS, "-cp", f"{libs}/*"]
        self._directory = Path(tempfile.mkdtemp(prefix=f"kafka-{version}-"))
        self._zookeeper = self._create_node("zookeeper")
        self.broker = self._create_node("broker")

    @property
    def bootstrap(self) -> str:
        """Return the address of the broker."""
        return self.broker.address

    def __enter__(self) -> Self:
        try:
            self._zookeeper.configure(
                [*self._java, "org.apache.zookeeper.server.ZooKeeperServerMain"],
                {
                    **_ZOOKEEPER_PROPERTIES,
                    "clientPort": str(self._zookeeper.ports["PLAINTEXT"]),
                    "dataDir": str(self._zookeeper.directory),
                },
            )
            self.broker.configure(
                [*self._java, "kafka.Kafka"],
                {
                    **_BROKER_PROPERTIES,
                    "listeners": f"PLAINTEXT://{self.bootstrap}",
                    "zookeeper.connect": self._zookeeper.address,
                    "log.dirs": str(self.broker.directory),
                },
            )
            self._zookeeper.start()
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End both processes, and remove what they wrote."""
        for node in (self.broker, self._zookeeper):
            node.kill()
            node.release_ports()
        shutil.rmtree(self._directory, ignore_errors=True)

    def wait_until_ready(self) -> None:
        """Start the broker, and wait until it is a member of its cluster.

        One that comes back after a kill ends at once as long as ZooKeeper keeps the session of the
        one before, for two seconds; it is then started again.

        Raises:
            TimeoutError: It is not after `START_TIMEOUT_S`; the message has the end of its log.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.broker.fetch_broker_ids() != {1}:
            self.broker.start()
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"Kafka {self.version} did not start: {self.broker.read_log_tail()}"
                )
            time.sleep(0.1)

    def create_topic(self, name: str, partitions: int, **config: str) -> None:
        """Create a topic, and wait until it exists."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        topic = NewTopic(name, partitions, 1, config=dict(config))
        admin.create_topics([topic])[name].result(START_TIMEOUT_S)

    def produce_with_java(self, topic: str, values: Sequence[str], codec: str) -> None:
        """Write records by the console producer of Kafka 2.8, which is one in Java.

        Args:
            topic: The topic.
            values: The values, without line breaks.
            codec: The compression: none, gzip, snappy, lz4 or zstd.
        """
        command = [*self._java, "kafka.tools.ConsoleProducer", "--bootstrap-server", self.bootstrap]
        subprocess.run(
            [*command, "--topic", topic, "--compression-codec", codec],
            input="\n".join(values) + "\n",
            text=True,
            check=True,
            capture_output=True,
            timeout=START_TIMEOUT_S,
        )

    def _create_node(self, name: str) -> KafkaNode:
        directory = self._directory / name
        directory.mkdir()
        return KafkaNode(1, directory, {"PLAINTEXT": ReservedPort()})
