"""Write deploy/kustomize from the Helm chart, so that both say the same.

`make manifests` runs it after a change of the chart or of its examples. Only the kustomization.yaml
of an overlay is written by hand.

A ConfigMap becomes the file gateway.yaml and a generator: kustomize puts a digest of it into the
name, so that a changed configuration replaces the pods. In the chart an annotation does that.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from helm_python import Chart
from ruamel.yaml import YAML

DEPLOY = Path(__file__).parent
CHART = DEPLOY / "helm" / "kafka-gateway"
RELEASE = "kafka-gateway"
NOTE = "# Written by `make manifests` from deploy/helm/kafka-gateway. Change the chart instead.\n"
# Folders of resources, and the values that they are rendered with.
BASES = {"base": None, "sidecar": "sidecar", "static-members": "static-members"}
# What production.yaml adds to the base, and what of the base has to give way.
COMPONENTS = {
    "autoscaling": ("horizontalpodautoscaler.yaml", "/spec/replicas"),
    "ingress": ("ingress.yaml", None),
    "network-policy": ("networkpolicy.yaml", None),
    "service-monitor": ("servicemonitor.yaml", None),
}
_CHECKSUM = re.compile(r" *annotations:\n *# A changed [^\n]*\n *checksum/config: [^\n]*\n")
_MANAGER = re.compile(r" *app\.kubernetes\.io/managed-by: [^\n]*\n")


def render(example: str | None) -> dict[str, str]:
    """Render the chart.

    Args:
        example: The name of the values under deploy/helm/examples; None for the defaults.

    Returns:
        The manifests by the name of their template, without those that are empty.
    """
    values: dict[str, Any] = {}
    if example is not None:
        text = (DEPLOY / "helm" / "examples" / f"{example}.yaml").read_text("utf-8")
        values = YAML(typ="safe", pure=True).load(text)
    manifests = Chart.load(CHART).render(values, name=RELEASE, namespace="default")
    texts = {Path(path).name: text for path, text in manifests.items()}
    return {
        name: _MANAGER.sub("", _CHECKSUM.sub("", text)).strip() + "\n"
        for name, text in texts.items()
        if text.strip() and name != "NOTES.txt"
    }


def write_base(folder: Path, manifests: dict[str, str]) -> None:
    """Write the resources of one variant."""
    configuration = YAML(typ="safe", pure=True).load(manifests.pop("configmap.yaml"))
    _write(folder / "gateway.yaml", configuration["data"]["gateway.yaml"])
    for name, text in manifests.items():
        _write(folder / name, text)
    metadata = configuration["metadata"]
    labels = "".join(f"        {name}: {value!r}\n" for name, value in metadata["labels"].items())
    resources = "".join(f"  - {name}\n" for name in sorted(manifests))
    _write(
        folder / "kustomization.yaml",
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources:\n{resources}"
        "# The digest of the file is in the name: a changed configuration replaces the pods.\n"
        "configMapGenerator:\n"
        f"  - name: {metadata['name']}\n"
        "    files: [gateway.yaml]\n"
        f"    options:\n      labels:\n{labels}",
    )


def write_component(folder: Path, name: str, text: str, removed: str | None) -> None:
    """Write one resource that overlays may add, and take away what it replaces."""
    _write(folder / name, text)
    patch = ""
    if removed is not None:
        patch = (
            "patches:\n  - target: {kind: Deployment|StatefulSet}\n"
            f'    patch: \'[{{"op": "remove", "path": "{removed}"}}]\'\n'
        )
    _write(
        folder / "kustomization.yaml",
        "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n"
        f"resources: [{name}]\n{patch}",
    )


def main(out: Path) -> None:
    """Write all that is generated into a folder, in place of what was there.

    Args:
        out: The folder; of its overlays/ only the configuration is written.
    """
    shutil.rmtree(out / "components", ignore_errors=True)
    for folder, example in BASES.items():
        shutil.rmtree(out / folder, ignore_errors=True)
        write_base(out / folder, render(example))
    production = render("production")
    for component, (name, removed) in COMPONENTS.items():
        write_component(out / "components" / component, name, production[name], removed)
    configuration = YAML(typ="safe", pure=True).load(production["configmap.yaml"])
    _write(out / "overlays" / "production" / "gateway.yaml", configuration["data"]["gateway.yaml"])


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(NOTE + text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEPLOY / "kustomize")
