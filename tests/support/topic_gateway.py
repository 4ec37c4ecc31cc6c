"""A gateway for a whole test module, whose routes take the topic from the path."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar

import pytest
from support.brokers import KafkaCluster
from support.gateways import (
    GatewayProcess,
    GatewayThread,
    build_config,
    running_gateway,
    running_gateway_process,
)

from gateway.kafka.embedded import EmbeddedKafka

Entered = TypeVar("Entered")

TOPIC_TEMPLATE = "${params.topic}"

ROUTES: Mapping[str, Mapping[str, Any]] = {
    "value": {"format": "value"},
    "records": {"format": "envelope"},
    "cloud": {"format": "cloudevents"},
    "base64": {"format": "value", "binary": "base64"},
    "beating": {"heartbeat": "100ms"},
    "brief": {"maxLifetime": "1s"},
    "recent": {"format": "envelope", "history": "1h"},
    "forgetful": {"format": "envelope", "history": "none"},
    "plain": {"compression": "none"},
}
"""`/NAME/TOPIC` answers with these options."""


class TopicNames:
    """Names of topics that are in the configuration before a test creates them."""

    def __init__(self, count: int = 60) -> None:
        self.names: Sequence[str] = [f"test-{uuid.uuid4().hex[:12]}" for _ in range(count)]
        self._counter = itertools.count()

    def create_topic(
        self, kafka: KafkaCluster | EmbeddedKafka, partitions: int = 1, **options: Any
    ) -> str:
        """A new topic; that of a real broker goes with the test."""
        name = self.names[next(self._counter)]
        kafka.create_topic(name, partitions, **options)
        return name


@pytest.fixture(scope="module")
def names() -> TopicNames:
    return TopicNames()


def topic_gateway_fixture() -> Any:
    """A fixture: the gateway of a module, before the module's own `kafka`."""

    @pytest.fixture(scope="module")
    def gateway(kafka: EmbeddedKafka, names: TopicNames) -> Iterator[GatewayThread]:
        with run_gateway_sync(build_topic_config(",".join(kafka.bootstrap), names)) as gateway:
            yield gateway

    return gateway


def topic_fixture() -> Any:
    """A fixture: `topic(partitions)` creates one that the gateway is configured for."""

    @pytest.fixture
    def topic(kafka: KafkaCluster | EmbeddedKafka, names: TopicNames) -> Callable[..., str]:
        return partial(names.create_topic, kafka)

    return topic


def build_topic_config(
    bootstrap: str,
    names: TopicNames,
    routes: Mapping[str, Mapping[str, Any]] = ROUTES,
    **sections: Any,
) -> dict[str, Any]:
    """The configuration. sections: as of `config_for`."""
    made = [
        {"when": [{"path": f"/{name}/{{topic}}"}], "with": {"topic": TOPIC_TEMPLATE, **options}}
        for name, options in routes.items()
    ]
    merged = {"topics": ["${params.one}", "${params.two}"], "format": "envelope"}
    made.append({"when": [{"path": "/merged/{one}/{two}"}], "with": merged})
    return build_config(bootstrap, names.names, routes=made, **sections)


def run_gateway_sync(
    config: Mapping[str, Any], **options: Any
) -> AbstractContextManager[GatewayThread]:
    """A gateway for fixtures that serve every event loop. options: of `running_gateway`."""
    return _enter_sync(running_gateway(config, **options))


def run_gateway_process_sync(
    config: Mapping[str, Any], **options: Any
) -> AbstractContextManager[GatewayProcess]:
    """As `run_gateway_sync`. options: of `running_gateway_process`."""
    return _enter_sync(running_gateway_process(config, **options))


@contextmanager
def _enter_sync(context: AbstractAsyncContextManager[Entered]) -> Iterator[Entered]:
    with asyncio.Runner() as runner:
        entered = runner.run(context.__aenter__())
        try:
            yield entered
        finally:
            runner.run(context.__aexit__(None, None, None))
