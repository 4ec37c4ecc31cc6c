"""The Helm chart: what Helm renders of it is valid, agrees with itself, and runs the gateway."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML
from support.charts import CHART, DEPLOY, Rendered, load_example, render_charts
from support.doc_commands import parse_gateway_command

import gateway
from gateway.config import Listen, Settings, iter_warnings, loads
from gateway.telemetry.catalog import METRICS
from gateway.web.app.supervisor import Supervisor

pytestmark = pytest.mark.needs("helm")

OLDEST = "1.29"  # of the versions of Kubernetes that it is for
SIDECAR = {"config": {"sidecar": {"producer": {}}}, "sidecar": {"backEnd": {"image": "shop"}}}
INGRESS = {"enabled": True, "hosts": [{"host": "a.example", "paths": ["/events"]}]}
VARIANTS: dict[str, Any] = {
    "defaults": {},
    "production": load_example("production"),
    "sidecar": load_example("sidecar"),
    "static members": load_example("static-members"),
    "stateful gateway": {"kind": "StatefulSet", "serviceMonitor": {"enabled": True}},
    "scaled by streams alone": {"autoscaling": {"enabled": True, "loopLag": "", "cpu": 0}},
    "scaled by CPU alone": {"autoscaling": {"enabled": True, "loopLag": "", "clients": ""}},
    "behind HAProxy": {"ingress": {**INGRESS, "controller": "haproxy", "className": "haproxy"}},
    "behind another": {"ingress": {**INGRESS, "controller": "other", "className": ""}},
    "with TLS of its own": {
        "config": {"listen": {"tls": {"certificate": __file__, "key": __file__}}},
        "volumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
        "volumeMounts": [{"name": "tls", "mountPath": "/tls", "readOnly": True}],
        "serviceMonitor": {"enabled": True},
    },
    "nothing that can be left out": {
        "serviceAccount": {"create": False},
        "podDisruptionBudget": {"enabled": False},
        "topologySpread": {"node": "", "zone": ""},
        "drain": {"preStopSeconds": 0},
    },
    "everything that can be added": {
        "nameOverride": "stream",
        "image": {"digest": f"sha256:{'0' * 64}", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "env": [{"name": "TOPIC", "value": "orders"}],
        "envFrom": [{"secretRef": {"name": "kafka"}}],
        "service": {"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}},
        "serviceAccount": {"annotations": {"a": "b"}},
        "networkPolicy": {"enabled": True},
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "stream"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "stream", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "podDisruptionBudget": {"maxUnavailable": "25%"},
        "topologySpread": {"zone": "DoNotSchedule"},
        "drain": {"timeoutSeconds": 60},
        "global": {"cluster": "a"},
    },
}
REFUSED: dict[str, tuple[Any, str]] = {
    "an unknown value": ({"replica": 3}, "'replica' not allowed"),
    "an address that the chart sets": (
        {"config": {"listen": {"port": 9000}}},
        "config.listen.port is set by the chart; remove it, and set ports.http",
    ),
    "a time that the chart sets": (
        {"config": {"listen": {"drainTimeout": "1m"}}},
        "config.listen.drainTimeout is set by the chart; remove it, and set drain.timeoutSeconds",
    ),
    "a sidecar without a section": ({"mode": "sidecar"}, "mode: sidecar needs config.sidecar"),
    "a sidecar without a back end": (
        {"mode": "sidecar", "config": {"sidecar": {"producer": {}}}},
        "sidecar.backEnd.image",
    ),
    "static members whose names change": (
        {**load_example("static-members"), "kind": "Deployment"},
        "set kind: StatefulSet",
    ),
    "an Ingress for no host": ({"ingress": {"enabled": True}}, "ingress needs ingress.hosts"),
    "an Ingress that cuts idle streams": (
        {"ingress": {**INGRESS, "timeoutSeconds": 15}},
        "timeoutSeconds",
    ),
    "scaling by nothing": (
        {"autoscaling": {"enabled": True, "clients": "", "loopLag": "", "cpu": 0}},
        "at least one of",
    ),
    "scaling between nothing": (
        {"autoscaling": {"enabled": True, "minReplicas": 9, "maxReplicas": 3}},
        "minReplicas is above",
    ),
    "metrics that nobody reaches": (
        {"mode": "sidecar", **SIDECAR, "serviceMonitor": {"enabled": True}},
        "on the pod's loopback",
    ),
    "a port that needs root": ({"ports": {"http": 80}}, "ports"),
}
# What is used of the operator's own kind; Kubernetes has no schema of it.
SERVICE_MONITOR = {
    "properties": {
        "spec": {
            "additionalProperties": False,
            "required": ["selector", "endpoints"],
            "properties": {
                "jobLabel": {"type": "string"},
                "selector": {
                    "additionalProperties": False,
                    "properties": {"matchLabels": {}, "matchExpressions": {}},
                },
                "endpoints": {
                    "items": {
                        "additionalProperties": False,
                        "properties": {
                            "port": {"type": "string"},
                            "path": {"type": "string"},
                            "interval": {"pattern": "^[0-9]+(ms|s|m|h)$"},
                            "scheme": {"enum": ["http", "https"]},
                            "tlsConfig": {},
                        },
                    }
                },
            },
        }
    }
}


@pytest.fixture(scope="module")
def rendered() -> dict[str, Rendered]:
    """Every variant, and everything that is refused, in one run of Helm."""
    values = {**VARIANTS, **{name: refused for name, (refused, _) in REFUSED.items()}}
    return dict(zip(values, render_charts(list(values.values())), strict=True))


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest, rendered: dict[str, Rendered]) -> Rendered:
    made = rendered[request.param]
    assert made.problem == ""
    return made


def find_workload(made: Rendered) -> Any:
    return made.get("StatefulSet" if made.has("StatefulSet") else "Deployment")


def find_pod(made: Rendered) -> Any:
    return find_workload(made)["spec"]["template"]["spec"]


def find_container(made: Rendered) -> Any:
    """The container of the gateway or of the sidecar."""
    pod = find_pod(made)
    return pod.get("initContainers", pod["containers"])[0]


def load_settings(made: Rendered) -> Settings:
    """What the container runs with: the variables of its image and its own override the file."""
    container = find_container(made)
    environment = dict(read_image_variables())
    environment |= {each["name"]: each.get("value", "shop-0") for each in container["env"]}
    text = made.get("ConfigMap")["data"]["gateway.yaml"]
    return loads(text, environ=environment, with_variables=True)


def read_image_variables() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text()
    return re.findall(r"^(?:ENV|   ) (GATEWAY_\w+)=(\S+)", text, re.M)


def test_helm_lints_it_and_kubernetes_knows_every_field(rendered: dict[str, Rendered]):
    import kubernetes_validate

    newest = kubernetes_validate.latest_version()
    checked = set()
    for name in VARIANTS:
        made = rendered[name]
        assert made.problem == "" and made.findings == [], name
        for (kind, _), document in made.documents.items():
            text = json.dumps(document, sort_keys=True)
            if text in checked:
                continue
            checked.add(text)
            if kind == "ServiceMonitor":
                jsonschema.validate(document, SERVICE_MONITOR)
            else:
                kubernetes_validate.validate(document, OLDEST, strict=True)
    for (kind, _), document in rendered["production"].documents.items():
        if kind != "ServiceMonitor":
            kubernetes_validate.validate(document, newest, strict=True)


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_cannot_work_are_refused_with_what_to_do(rendered, name):
    assert REFUSED[name][1] in rendered[name].problem


def test_the_gateway_loads_its_configuration_and_listens_where_the_pod_is_asked(variant, tmp_path):
    settings = load_settings(variant)
    container, pod = find_container(variant), find_pod(variant)
    if settings.sidecar is None:
        assert list(iter_warnings(settings)) == []
        assert settings.listen.host == "0.0.0.0"
        (port,) = container["ports"]
        assert port["containerPort"] == settings.listen.port
    else:
        # Nobody outside the pod reaches it. With the image's variable it was 0.0.0.0, which an
        # unguarded sidecar refuses.
        assert settings.listen.host == "127.0.0.1"
        (back_end,) = pod["containers"]
        assert back_end["env"][0]["value"] == f"http://127.0.0.1:{settings.listen.port}"
        assert container["restartPolicy"] == "Always"
    volumes = {each["name"]: each for each in pod["volumes"]}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
    configuration = mounts["/etc/gateway"]["configMap"]["name"]
    assert configuration == variant.get("ConfigMap")["metadata"]["name"]
    assert mounts["/tmp"]["emptyDir"] == {}
    assert container["args"][-1] == "/etc/gateway/gateway.yaml"
    parse_gateway_command(container["args"], tmp_path)


def test_a_pod_has_time_to_end_its_streams(variant: Rendered):
    settings, pod = load_settings(variant), find_pod(variant)
    end = settings.listen.drain_timeout + Supervisor.KILL_GRACE_S
    if settings.sidecar is not None and settings.sidecar.reactive is not None:
        end += max(each.backend.timeout for each in settings.sidecar.reactive.groups)
    for container in pod["containers"]:
        hook = container.get("lifecycle", {}).get("preStop", {"exec": {"command": ["sleep", "0"]}})
        assert pod["terminationGracePeriodSeconds"] > int(hook["exec"]["command"][1]) + end


def test_an_outage_of_kafka_restarts_no_pod(variant: Rendered):
    container = find_container(variant)
    tls = load_settings(variant).listen.tls is not None
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if "initContainers" in find_pod(variant):
            path = "readiness" if probe == "readinessProbe" else "liveness"
            assert f"/health/{path}" in container[probe]["exec"]["command"][-1]
            assert container[probe]["timeoutSeconds"] > 2
            continue
        path = "/health/ready" if probe == "readinessProbe" else "/health/live"
        expected = {"path": path, "port": "http"} | ({"scheme": "HTTPS"} if tls else {})
        assert container[probe]["httpGet"] == expected


def test_it_runs_without_root_or_a_file_system_to_write_to(variant: Rendered):
    pod = find_pod(variant)
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    context = find_container(variant)["securityContext"]
    assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert f"USER {pod['securityContext']['runAsUser']}:" in dockerfile


def test_all_that_selects_pods_selects_these(variant: Rendered):
    workload = find_workload(variant)
    labels = workload["spec"]["template"]["metadata"]["labels"].items()
    selectors = [workload["spec"]["selector"]["matchLabels"]]
    for (kind, _), document in variant.documents.items():
        spec = document.get("spec", {})
        if kind == "Service":
            selectors.append(spec["selector"])
            (port,) = spec["ports"]
            (target,) = find_pod(variant)["containers"][0]["ports"]
            assert port["targetPort"] == target["name"] == "http"
        elif kind in ("PodDisruptionBudget", "NetworkPolicy"):
            selectors.append(spec.get("selector", spec.get("podSelector"))["matchLabels"])
        elif kind == "HorizontalPodAutoscaler":
            assert spec["scaleTargetRef"]["name"] == workload["metadata"]["name"]
            assert "replicas" not in workload["spec"]
        elif kind == "Ingress":
            backend = spec["rules"][0]["http"]["paths"][0]["backend"]["service"]
            assert ("Service", backend["name"]) in variant.documents
    for each in find_pod(variant).get("topologySpreadConstraints", []):
        selectors.append(each["labelSelector"]["matchLabels"])
    for selector in selectors:
        assert selector and selector.items() <= labels


def test_each_pod_is_scraped_once(rendered: dict[str, Rendered]):
    """The Service of a StatefulSet's names would be a second target of each pod."""
    made = rendered["stateful gateway"]
    selector = made.get("ServiceMonitor")["spec"]["selector"]
    (excluded,) = selector["matchExpressions"]
    found = [
        name
        for (kind, name), each in made.documents.items()
        if kind == "Service"
        and selector["matchLabels"].items() <= each["metadata"]["labels"].items()
        and excluded["key"] not in each["metadata"]["labels"]
    ]
    assert found == ["kafka-gateway"]
    # Rules name the job that Prometheus of compose has.
    label = made.get("ServiceMonitor")["spec"]["jobLabel"]
    text = (DEPLOY / "compose" / "prometheus.yml").read_text()
    (job,) = YAML(typ="safe", pure=True).load(text)["scrape_configs"]
    assert (
        made.documents["Service", "kafka-gateway"]["metadata"]["labels"][label] == job["job_name"]
    )
    assert find_workload(made)["spec"]["serviceName"] == "kafka-gateway-pods"


def test_a_static_member_has_the_name_of_its_pod_and_time_to_come_back(rendered):
    made = rendered["static members"]
    sidecar = load_settings(made).sidecar
    assert sidecar is not None and sidecar.reactive is not None
    (group,) = sidecar.reactive.groups
    assert group.instance_id == "shop-0"
    spec = find_workload(made)["spec"]
    assert group.session_timeout > find_pod(made)["terminationGracePeriodSeconds"]
    assert spec["minReadySeconds"] > 0 and spec["podManagementPolicy"] == "Parallel"


def test_what_scales_the_pods_is_asked_of_metrics_that_exist(rendered: dict[str, Rendered]):
    text = (DEPLOY / "helm" / "prometheus-adapter.yaml").read_text()
    rules = YAML(typ="safe", pure=True).load(text)["rules"]["custom"]
    known = {metric.name for metric in METRICS}
    names = {re.sub(r"_bucket$", "", rule["seriesQuery"].partition("{")[0]) for rule in rules}
    assert names <= known
    metrics = rendered["production"].get("HorizontalPodAutoscaler")["spec"]["metrics"]
    asked = {each["pods"]["metric"]["name"] for each in metrics if each["type"] == "Pods"}
    assert asked == {rule["name"]["as"] for rule in rules}


def test_an_ingress_holds_no_event_back_and_cuts_no_idle_stream(rendered: dict[str, Rendered]):
    nginx = rendered["production"].get("Ingress")["metadata"]["annotations"]
    assert nginx["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert int(nginx["nginx.ingress.kubernetes.io/proxy-read-timeout"]) >= 3600
    haproxy = rendered["behind HAProxy"].get("Ingress")["metadata"]["annotations"]
    assert haproxy["haproxy.org/timeout-server"] == haproxy["haproxy.org/timeout-tunnel"]
    assert "WARNING: config.listen.forwarded" in rendered["behind HAProxy"].notes
    assert "WARNING" not in rendered["production"].notes


def test_the_network_lets_in_who_is_named_and_out_what_is_needed(rendered: dict[str, Rendered]):
    spec = rendered["production"].get("NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    (rule,) = spec["ingress"]
    assert len(rule["from"]) == 2
    dns, kafka = spec["egress"]
    assert {each["port"] for each in dns["ports"]} == {53}
    assert kafka["ports"] == [{"port": 9092}]


def test_every_value_has_a_default_and_every_default_a_schema():
    """The schema refuses what it does not name, and a default shows what there is."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = YAML(typ="safe", pure=True).load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
    for name, section in schema["properties"].items():
        if section.get("additionalProperties") is False and name not in ("resources", "probes"):
            assert set(section["properties"]) == set(values[name]), name


def test_the_chart_has_the_version_of_the_gateway_and_its_times():
    chart = YAML(typ="safe", pure=True).load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == gateway.__version__
    values = YAML(typ="safe", pure=True).load((CHART / "values.yaml").read_text())
    assert values["drain"]["timeoutSeconds"] == Listen().drain_timeout
    assert values["drain"]["killSeconds"] == Supervisor.KILL_GRACE_S
