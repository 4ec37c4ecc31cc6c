"""The Helm chart of deploy/helm, rendered by Helm, and kustomizations, built by kustomize."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "kafka-gateway"
# Helm is a library of Go: in a process of its own, for its signal handlers and threads.
_PROGRAM = """
import json, sys
from helm_python import Chart, HelmError, lint
chart = Chart.load(sys.argv[1])
def render(values):
    try:
        report = lint(sys.argv[1], values, strict=True)
        found = [each["error"] for each in report["messages"] if each["severity"] > 1]
        manifests = chart.render(values, name="kafka-gateway", namespace="default")
    except HelmError as exc:
        return {"manifests": {}, "problem": str(exc), "findings": []}
    return {"manifests": manifests, "problem": "", "findings": found}
json.dump([render(values) for values in json.load(sys.stdin)], sys.stdout)
"""


class Rendered(NamedTuple):
    """What Helm makes of values.

    documents: the manifests, by kind and name.
    findings:  what `helm lint --strict` says, above hints.
    problem:   why the values are refused; empty if they are not.
    notes:     what is printed after an installation.
    """

    documents: dict[tuple[str, str], Any]
    findings: list[str]
    problem: str
    notes: str

    def get(self, kind: str) -> Any:
        """The manifest of this kind, the first one by name."""
        return next(each for (found, _), each in sorted(self.documents.items()) if found == kind)

    def has(self, kind: str) -> bool:
        return any(found == kind for found, _ in self.documents)


def render_charts(values: Sequence[Any]) -> list[Rendered]:
    """Render the chart with each of several values."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(CHART)],
        input=json.dumps(values), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [_read(each) for each in json.loads(done.stdout)]


def _read(made: Any) -> Rendered:
    texts = dict(made["manifests"])
    notes = texts.pop("kafka-gateway/templates/NOTES.txt", "")
    return Rendered(index_documents(texts.values()), made["findings"], made["problem"], notes)


def index_documents(texts: Iterable[str]) -> dict[tuple[str, str], Any]:
    """The documents of YAML files by kind and name."""
    yaml = YAML(typ="safe", pure=True)
    documents = [each for text in texts for each in yaml.load_all(text) if each is not None]
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def load_example(name: str) -> Any:
    """Values of deploy/helm/examples."""
    return YAML(typ="safe", pure=True).load(
        (DEPLOY / "helm" / "examples" / f"{name}.yaml").read_text()
    )


def build_kustomization(folder: str) -> dict[tuple[str, str], Any]:
    """What `kustomize build` makes of a folder of deploy/kustomize."""
    command = ["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]
    path = DEPLOY / "kustomize" / folder
    done = subprocess.run([*command, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return index_documents([done.stdout])
