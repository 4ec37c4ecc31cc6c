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


async def test_a_fork_that_dies_says_why() -> None:
    with pytest.raises(AssertionError, match=r"status 78(.|\n)*unknown key 'mood'"):
        async with running_gateway_process(build_config("127.0.0.1:9092", mood="dies")):
            pass


async def test_a_fork_has_the_environment_that_is_given(embedded: EmbeddedKafka) -> None:
    made = build_config(embedded.bootstrap, ["orders"], name="${env.GATEWAY_TEST_NAME}")
    async with running_gateway_process(
        made, environment={"GATEWAY_TEST_NAME": "of-the-test"}
    ) as gateway:
        assert gateway.is_alive
    assert "GATEWAY_TEST_NAME" not in os.environ
