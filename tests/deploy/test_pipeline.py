"""deploy/pipeline: Kubernetes and the Spark operator know its manifests, which fit the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML
from support.charts import DEPLOY, index_documents
from support.doc_commands import parse_gateway_command

import gateway
from gateway.cli.pipeline.pod import build_driver_command, build_executor_command
from gateway.config import iter_warnings, loads
from gateway.pipeline.check import find_static_problems
from gateway.pipeline.run.runner import EXIT_TIMEOUT_S
from gateway.pipeline.spark.session import BASE_CONF
from gateway.pipeline.spark.spark_home import SPARK_VERSION

FOLDER = DEPLOY / "pipeline"
CONFIGURATION = (FOLDER / "gateway.yaml").read_text()
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
IMAGE = f"gateway-pipeline:{gateway.__version__}"
COMPOSE = YAML(typ="safe", pure=True).load((DEPLOY / "compose.yaml").read_text())


def read_manifests(name: str) -> dict[str, Any]:
    """The documents of a file by their kind."""
    documents = index_documents([(FOLDER / name).read_text()])
    return {kind: document for (kind, _), document in documents.items()}


MANIFESTS = {name: read_manifests(f"{name}.yaml") for name in ("stateful-set", "job")}
APPLICATION = read_manifests("spark-application.yaml")["SparkApplication"]["spec"]
PODS = [
    MANIFESTS["stateful-set"]["StatefulSet"]["spec"]["template"]["spec"],
    MANIFESTS["job"]["Job"]["spec"]["template"]["spec"],
]
# What is used of the operator's own kind (v1beta2); Kubernetes has no schema of it.
POD_SCHEMA: Any = {
    "additionalProperties": False,
    "properties": {
        "cores": {"type": "integer"},
        "instances": {"type": "integer"},
        "memory": {"pattern": "^[0-9]+[mg]$"},
        "memoryOverhead": {"pattern": "^[0-9]+[mg]$"},
        "serviceAccount": {"type": "string"},
        "terminationGracePeriodSeconds": {"type": "integer"},
        "podSecurityContext": {},
        "securityContext": {},
        "volumeMounts": {"items": {"required": ["name", "mountPath"]}},
    },
}
APPLICATION_SCHEMA: Any = {
    "additionalProperties": False,
    "required": ["type", "sparkVersion", "driver", "executor"],
    "properties": {
        "type": {"const": "Python"},
        "mode": {"const": "cluster"},
        "sparkVersion": {"type": "string"},
        "image": {"type": "string"},
        "mainApplicationFile": {"pattern": "^local:///"},
        "arguments": {"items": {"type": "string"}},
        "restartPolicy": {
            "additionalProperties": False,
            "properties": {
                "type": {"enum": ["Always", "OnFailure", "Never"]},
                "onFailureRetryInterval": {"type": "integer"},
                "onSubmissionFailureRetryInterval": {"type": "integer"},
            },
        },
        "sparkConf": {"additionalProperties": {"type": "string"}},
        "driver": POD_SCHEMA,
        "executor": POD_SCHEMA,
        "volumes": {"items": {"required": ["name"]}},
    },
}


@pytest.mark.needs("helm")  # the packages of `make setup`
def test_kubernetes_and_the_operator_know_every_field():
    import kubernetes_validate

    claim = read_manifests("spark-application.yaml")["PersistentVolumeClaim"]
    for document in [claim, *(each for made in MANIFESTS.values() for each in made.values())]:
        for version in ("1.29", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(document, version, strict=True)
    jsonschema.validate(APPLICATION, APPLICATION_SCHEMA)


def test_the_jobs_have_no_problem_and_end_by_themselves_only_in_the_job():
    (job_container,) = PODS[1]["containers"]
    variables = {each["name"]: each["value"] for each in job_container["env"]}
    for environ, trigger in (({}, 0.0), (variables, "available-now")):
        settings = loads(CONFIGURATION, environ=environ)
        assert list(iter_warnings(settings)) == []
        assert find_static_problems(settings) == []
        assert settings.pipelines is not None
        assert [job.trigger for job in settings.pipelines.jobs] == [trigger]


def test_every_pod_mounts_what_the_jobs_read_and_write_and_has_time_to_end(tmp_path: Path):
    settings = loads(CONFIGURATION)
    assert settings.pipelines is not None
    pods = [(pod["containers"][0], pod) for pod in PODS]
    pods += [(APPLICATION[role], APPLICATION) for role in ("driver", "executor")]
    claims = MANIFESTS["stateful-set"]["StatefulSet"]["spec"]["volumeClaimTemplates"]
    for container, pod in pods:
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert mounts.keys() == {"/etc/gateway", settings.pipelines.checkpoints, "/tmp"}
        volumes = {each["metadata"]["name"] for each in claims if pod is PODS[0]}
        assert {*mounts.values()} == volumes | {each["name"] for each in pod["volumes"]}
        spec = container if pod is APPLICATION else pod
        assert spec["terminationGracePeriodSeconds"] > EXIT_TIMEOUT_S
        security = spec.get("podSecurityContext") or spec["securityContext"]
        assert f"USER {security['runAsUser']}:" in DOCKERFILE and security["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert (container.get("image") or APPLICATION["image"]) == IMAGE
        if "args" in container:
            parse_gateway_command(container["args"], tmp_path)


def test_the_operator_submits_the_driver_of_the_image_with_the_settings_of_a_context():
    """Those of Spark SQL are set by the driver; it cannot change the others any more."""
    assert APPLICATION["sparkVersion"] == SPARK_VERSION
    assert APPLICATION["sparkConf"].items() <= BASE_CONF.items()
    home = "/opt/gateway/spark"
    assert f"SPARK_HOME={home}" in DOCKERFILE
    assert APPLICATION["mainApplicationFile"] == f"local://{home}/driver.py"


def test_compose_builds_the_image_of_jobs_and_gives_them_time_to_end():
    service = COMPOSE["services"]["jobs"]
    assert service["image"] == IMAGE.partition(":")[0]
    assert f" AS {service['build']['target']}\n" in DOCKERFILE
    assert int(service["stop_grace_period"].rstrip("s")) > EXIT_TIMEOUT_S
    assert "./pipeline/gateway.yaml:/etc/gateway/gateway.yaml:ro" in service["volumes"]


def test_the_image_starts_a_driver_and_an_executor_as_spark_asks_for_them():
    """The names of variables and options are those of the entry point in Spark's own image."""
    variables = {"SPARK_HOME": "/spark", "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"}
    driver = build_driver_command(variables, ["--class", "Main", "local:///driver.py", "all"])
    assert driver == [
        *("/spark/bin/spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.7"),
        *("--deploy-mode", "client", "--class", "Main", "local:///driver.py", "all"),
    ]
    names = "DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP"
    names += "RESOURCE_PROFILE_ID", "EXECUTOR_POD_NAME"
    variables |= {f"SPARK_{name}": name.lower() for name in names}
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn={number}" for number in (10, 9, 0)}
    memory = {"SPARK_EXECUTOR_MEMORY": "1g", "SPARK_CONF_DIR": "/conf"}
    executor = build_executor_command(variables | options | memory)
    assert executor == [
        *("java", "-Dn=0", "-Dn=9", "-Dn=10", "-Xms1g", "-Xmx1g", "-cp", "/conf:/spark/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "driver_url", "--executor-id", "executor_id"),
        *("--cores", "executor_cores", "--app-id", "application_id"),
        *("--hostname", "executor_pod_ip", "--resourceProfileId", "resource_profile_id"),
        *("--podName", "executor_pod_name"),
    ]
