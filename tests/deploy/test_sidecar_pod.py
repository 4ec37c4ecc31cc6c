"""The pod of deploy/kustomize/sidecar, as far as it can be tried without a cluster.

Its configuration is served, by its arguments, and its probes are run, as they stand there.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.gateways import running_gateway_process

from gateway.config import Settings, iter_warnings, loads

SOURCE = Path(__file__).parents[2] / "deploy" / "kustomize" / "sidecar"
CONFIGURATION = (SOURCE / "gateway.yaml").read_text()
DEPLOYMENT = YAML(typ="safe", pure=True).load((SOURCE / "workload.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]["spec"]
(SIDECAR,) = POD["initContainers"]
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def settings() -> Settings:
    return loads(CONFIGURATION, environ={"KAFKA": "kafka:9092"})


def test_the_container_reads_the_configuration_that_is_beside_it():
    assert list(iter_warnings(settings())) == []
    assert SIDECAR["args"] == ["sidecar", "-c", "/etc/gateway/gateway.yaml"]


def test_it_has_the_resources_that_the_sidecar_was_designed_for():
    assert SIDECAR["resources"] == {
        "limits": {"cpu": "500m", "memory": "1Gi"},
        "requests": {"cpu": "250m", "memory": "768Mi"},
    }


def test_the_back_end_is_called_where_its_container_listens_and_has_time_to_answer():
    made = settings()
    assert made.sidecar is not None and made.sidecar.reactive is not None
    (group,) = made.sidecar.reactive.groups
    (container,) = POD["containers"]
    (port,) = container["ports"]
    assert group.backend.host == f"http://127.0.0.1:{port['containerPort']}"
    assert container["env"][0]["value"] == f"http://127.0.0.1:{made.listen.port}"
    assert made.listen.host == "127.0.0.1"  # so nobody outside the pod reaches it
    assert POD["terminationGracePeriodSeconds"] > group.backend.timeout + made.listen.drain_timeout
    for probe in PROBES:
        assert SIDECAR[probe]["timeoutSeconds"] >= 2


@pytest.mark.needs("process")
async def test_its_probes_pass_while_the_sidecar_runs_and_fail_when_it_is_gone(embedded):
    config: Any = YAML(typ="safe", pure=True).load(CONFIGURATION)
    config["kafka"]["servers"] = embedded.bootstrap
    config["sidecar"].pop("reactive")  # the embedded Kafka has no groups
    port = str(config["listen"]["port"])
    config["listen"]["port"] = 0
    command = [sys.executable, "-m", "gateway", SIDECAR["args"][0], "-c"]
    async with running_gateway_process(config, command=command) as gateway:

        async def passes(probe: str) -> bool:
            python, *arguments = SIDECAR[probe]["exec"]["command"]
            assert python == "python"
            moved = [each.replace(port, str(gateway.port)) for each in arguments]
            process = await asyncio.create_subprocess_exec(
                sys.executable, *moved, stderr=asyncio.subprocess.DEVNULL
            )
            return await process.wait() == 0

        for probe in PROBES:
            assert await passes(probe), probe
        await gateway.kill()
        assert not await passes("livenessProbe")
