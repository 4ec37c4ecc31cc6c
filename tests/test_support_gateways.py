"""The real program as tests start it: a fork that is a process like any other."""

from __future__ import annotations

import os

import psutil
import pytest
from support.gateways import build_config, running_gateway_process

from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.needs("process")


async def test_a_fork_ends_as_a_process_does(embedded: EmbeddedKafka) -> None:
    async with running_gateway_process(build_config(embedded.bootstrap, ["orders"])) as gateway:
        first = psutil.Process(gateway.pid)
        assert first.ppid() != os.getpid()
        await gateway.kill()
        assert not first.is_running()
        await gateway.restart()
        assert gateway.pid != first.pid
        assert await gateway.stop() == 0
        assert gateway.log.count("listening on") == 2
