"""deploy/kubernetes.yaml and deploy/compose.yaml, as far as they can be tried without a cluster.

The configuration is loaded, and ports, probes, commands and times fit the gateway.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.doc_commands import parse_gateway_command

from gateway.config import Listen, Settings, iter_warnings, loads
from gateway.web.workers.supervisor import Supervisor

DEPLOY = Path(__file__).parents[2] / "deploy"
STOP_S = Listen().drain_timeout + Supervisor.KILL_GRACE_S  # how long a gateway may take to end


def read_documents(name: str) -> dict[str, Any]:
    """The documents of a file by their kind."""
    documents = YAML(typ="safe", pure=True).load_all((DEPLOY / name).read_text())
    return {each.get("kind", ""): each for each in documents}


KUBERNETES = read_documents("kubernetes.yaml")
POD = KUBERNETES["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def load_settings() -> Settings:
    text = KUBERNETES["ConfigMap"]["data"]["gateway.yaml"]
    return loads(text, environ={"KAFKA": "kafka:9092"})


def test_the_configuration_of_the_pod_is_loaded_without_a_warning():
    settings = load_settings()
    assert list(iter_warnings(settings)) == []
    assert settings.listen.host == "0.0.0.0"
    (port,) = CONTAINER["ports"]
    assert port["containerPort"] == settings.listen.port


def test_the_pod_reads_the_configuration_that_is_beside_it(tmp_path: Path):
    mounted, _ = CONTAINER["volumeMounts"]
    volume, _ = POD["volumes"]
    assert volume["configMap"]["name"] == KUBERNETES["ConfigMap"]["metadata"]["name"]
    assert CONTAINER["args"][-1] == f"{mounted['mountPath']}/gateway.yaml"
    parse_gateway_command(CONTAINER["args"], tmp_path)


def test_service_budget_and_deployment_select_the_pods():
    labels = KUBERNETES["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert KUBERNETES["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert KUBERNETES["Service"]["spec"]["selector"] == labels
    assert KUBERNETES["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    (port,) = KUBERNETES["Service"]["spec"]["ports"]
    assert port["targetPort"] == CONTAINER["ports"][0]["name"]


def test_the_pod_has_time_to_end_its_streams():
    (command,) = CONTAINER["lifecycle"]["preStop"].values()
    wait = int(command["command"][1])
    assert POD["terminationGracePeriodSeconds"] > wait + STOP_S


@pytest.mark.parametrize(
    ("probe", "path"),
    [
        ("startupProbe", "/health/live"),
        ("livenessProbe", "/health/live"),
        ("readinessProbe", "/health/ready"),
    ],
)
def test_an_outage_of_kafka_restarts_no_pod(probe: str, path: str):
    assert CONTAINER[probe]["httpGet"] == {"path": path, "port": CONTAINER["ports"][0]["name"]}


def test_compose_starts_the_gateway_with_a_command_that_exists(tmp_path: Path):
    services = read_documents("compose.yaml")[""]["services"]
    gateway, kafka = services["gateway"], services["kafka"]
    parse_gateway_command(gateway["command"], tmp_path)
    assert (DEPLOY / gateway["build"]["context"] / gateway["build"]["dockerfile"]).is_file()
    environment = gateway["environment"]
    settings = loads("{}", environ=environment, with_variables=True)
    assert settings.listen.host == "0.0.0.0"
    advertised = kafka["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert advertised == f"PLAINTEXT://{environment['GATEWAY_KAFKA__SERVERS']}"
    found = re.fullmatch(r"(\d+)s", gateway["stop_grace_period"])
    assert found is not None and int(found[1]) > STOP_S
