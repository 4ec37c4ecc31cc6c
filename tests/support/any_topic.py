"""A gateway for a whole test module, whose routes take the topic from the path."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from support.brokers import Broker
from support.gateways import Gateway, config_for, running_gateway

TOPIC = "${params.topic}"

ROUTES: Mapping[str, Mapping[str, Any]] = {
    "value": {"format": "value"},
    "records": {"format": "envelope"},
    "cloud": {"format": "cloudevents"},
    "base64": {"format": "value", "binary": "base64"},
    "beating": {"heartbeat": "100ms"},
    "brief": {"maxLifetime": "1s"},
    "recent": {"format": "envelope", "history": "1h"},
    "forgetful": {"format": "envelope", "history": "none"},
}
"""`/NAME/TOPIC` answers with these options."""


class Names:
    """Names of topics that are in the configuration before a test creates them."""

    def __init__(self, count: int = 60) -> None:
        self.all: Sequence[str] = [f"test-{uuid.uuid4().hex[:12]}" for _ in range(count)]
        self._next = itertools.count()

    def create(self, broker: Broker, partitions: int = 1, configs: Any = None) -> str:
        """A new topic, deleted with the test like every one of the broker's."""
        name = self.all[next(self._next)]
        broker.admin.create_topic(name, partitions, configs=configs)
        broker._topics.append(name)
        return name


def any_topic(
    servers: str,
    names: Names,
    routes: Mapping[str, Mapping[str, Any]] = ROUTES,
    **sections: Any,
) -> dict[str, Any]:
    """The configuration. sections: as of `config_for`."""
    made = [
        {"when": [{"path": f"/{name}/{{topic}}"}], "with": {"topic": TOPIC, **options}}
        for name, options in routes.items()
    ]
    merged = {"topics": ["${params.one}", "${params.two}"], "format": "envelope"}
    made.append({"when": [{"path": "/merged/{one}/{two}"}], "with": merged})
    return config_for(servers, names.all, routes=made, **sections)


@contextmanager
def serving(config: Mapping[str, Any], **options: Any) -> Iterator[Gateway]:
    """A gateway for fixtures that serve every event loop. options: of `running_gateway`."""
    with asyncio.Runner() as runner:
        context = running_gateway(config, **options)
        gateway = runner.run(context.__aenter__())
        try:
            yield gateway
        finally:
            runner.run(context.__aexit__(None, None, None))
