"""A local Kafka with what only tests and benches need: more listeners, users, and frozen nodes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.kafka.local import KafkaNode, LocalKafka, java
from gateway.kafka.local.cluster import START_TIMEOUT_S
from gateway.kafka.local.node import build_checkpoint


class RiggedNode(KafkaNode):
    """A node that may be frozen."""

    is_frozen = False

    def freeze(self) -> None:
        """Stop the process (SIGSTOP), so that its connections stay open and silent."""
        self.is_frozen = True
        self._send_signal(signal.SIGSTOP)

    def unfreeze(self) -> None:
        if self.is_frozen:
            self.is_frozen = False
            self._send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self.unfreeze()  # a frozen process does not act on SIGTERM
        super().terminate()

    def stop(self, timeout: float = 20.0) -> None:
        """Shut the node down. The last one of three has no quorum: it is killed after `timeout`."""
        self.terminate()
        self.wait(timeout)

    def wait(self, timeout: float = 10.0) -> None:
        super().wait(timeout)
        self.is_frozen = False


class RiggedKafka(LocalKafka):
    """
    listeners: The security protocols, by name, of listeners beside the plain one, which always
        stays. The properties configure them.
    scram_users: Users as Kafka's storage tool takes them.
    advertised: Returns host and port for a node id. It opens a listener VIA that *advertises* this
        address. Put a TCP proxy there that forwards to `nodes[i].ports["VIA"]`: clients that
        bootstrap through it stay behind it, while clients of the plain listener reach the broker
        directly.
    """

    NODE_CLASS = RiggedNode
    nodes: list[Any]

    def __init__(
        self,
        nodes: int = 1,
        *,
        listeners: Mapping[str, str] | None = None,
        scram_users: Sequence[str] = (),
        advertised: Callable[[int], tuple[str, int]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(nodes, **options)
        self._listeners = dict(listeners or {})
        self._scram_users = scram_users
        self._advertised = advertised
        self._listener_names += [*self._listeners, *(["VIA"] if advertised else [])]

    def get_addresses(self, name: str) -> list[str]:
        return [f"127.0.0.1:{node.ports[name]}" for node in self.nodes]

    def get_node(self, id: int) -> RiggedNode:
        return self.nodes[id - 1]

    def restore(self, timeout: float = START_TIMEOUT_S) -> None:
        """Unfreeze the frozen nodes, start the dead ones, and wait until all can be used again."""
        for node in self.nodes:
            node.unfreeze()
            node.start()
        self.wait_ready(timeout)

    def _prepare_command(self) -> tuple[list[str], bytes]:
        command, checkpoint = super()._prepare_command()
        if self._scram_users:
            options = (word for user in self._scram_users for word in ("--add-scram", user))
            checkpoint = build_checkpoint(java.kafka_cache_path(), *options)
        return command, checkpoint

    def _build_node_properties(self, node: KafkaNode) -> dict[str, str]:
        properties = super()._build_node_properties(node)
        protocols = {name: self._listeners.get(name, "PLAINTEXT") for name in node.ports}
        properties["listener.security.protocol.map"] = ",".join(
            f"{name}:{protocol}" for name, protocol in protocols.items()
        )
        if self._advertised is not None:
            host, port = self._advertised(node.id)
            own = f"VIA://127.0.0.1:{node.ports['VIA']}"
            advertised = properties["advertised.listeners"].replace(own, f"VIA://{host}:{port}")
            properties["advertised.listeners"] = advertised
        return properties
