"""deploy/kustomize is what the chart renders, and kustomize builds the same of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.charts import DEPLOY, build_kustomization, load_example, render_charts

KUSTOMIZE = DEPLOY / "kustomize"
# What only Helm writes: who manages a manifest, and the digest that replaces the pods.
HELM_ONLY = ("app.kubernetes.io/managed-by", "checksum/config")
RELEASES = {
    "base": {},
    "overlays/production": load_example("production"),
    "sidecar": load_example("sidecar"),
    "static-members": load_example("static-members"),
}


def normalize(documents: dict[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    """The manifests without what differs on purpose: the digest in a ConfigMap's name is one."""
    (name,) = [name for kind, name in documents if kind == "ConfigMap"]
    plain = re.sub(r"-[0-9a-z]{10}$", "", name)
    return {
        (kind, plain if found == name else found): _normalize(document, name, plain)
        for (kind, found), document in documents.items()
    }


def _normalize(node: Any, name: str, plain: str) -> Any:
    if isinstance(node, list):
        return [_normalize(each, name, plain) for each in node]
    if not isinstance(node, dict):
        return plain if node == name else node
    made = {k: _normalize(v, name, plain) for k, v in node.items() if k not in HELM_ONLY}
    if "gateway.yaml" in made:
        made["gateway.yaml"] = YAML(typ="safe", pure=True).load(made["gateway.yaml"])
    return {key: value for key, value in made.items() if (key, value) != ("annotations", {})}


@pytest.mark.needs("helm")
def test_its_files_are_those_that_the_chart_renders_now(tmp_path: Path):
    """After a change of the chart: `make manifests`."""
    command = [sys.executable, str(DEPLOY / "render_kustomize.py"), str(tmp_path)]
    subprocess.run(command, check=True, timeout=300)
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    kept = {path.relative_to(KUSTOMIZE) for path in KUSTOMIZE.rglob("*") if path.is_file()}
    assert kept - made == {Path("overlays/production/kustomization.yaml")}
    for path in made:
        assert (KUSTOMIZE / path).read_text() == (tmp_path / path).read_text(), "make manifests"


@pytest.mark.needs("helm", "kustomize")
def test_kustomize_builds_what_helm_renders():
    rendered = render_charts(list(RELEASES.values()))
    for folder, chart in zip(RELEASES, rendered, strict=True):
        assert chart.problem == ""
        built = normalize(build_kustomization(folder))
        expected = normalize(chart.documents)
        assert built.keys() == expected.keys()
        for key, document in built.items():
            assert document == expected[key], (folder, *key)
