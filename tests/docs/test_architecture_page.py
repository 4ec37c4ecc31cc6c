"""What the page about the architecture names is in the package: modules, packages, registries."""

from __future__ import annotations

import re

import pytest
from support.doc_blocks import DOCS, ROOT

PAGE = (DOCS / "architecture.md").read_text()
SOURCE = ROOT / "gateway"
MODULES = sorted(set(re.findall(r"\b([a-z_]+(?:/[a-z_]+)*\.py)\b", PAGE)))
FOLDERS = sorted(set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+)`", PAGE)))
REGISTRIES = sorted(set(re.findall(r"`([A-Z]+_?[A-Z_]+)`", PAGE)))


@pytest.mark.parametrize("path", [*MODULES, *FOLDERS])
def test_modules_and_packages_of_the_page_exist(path: str):
    assert (SOURCE / path).exists() or (ROOT / path).exists()


@pytest.mark.parametrize("name", [each for each in REGISTRIES if each not in ("HTTP", "ASGI")])
def test_registries_of_the_page_exist(name: str):
    texts = (path.read_text() for path in SOURCE.rglob("*.py"))
    assert any(re.search(rf"^{name}\b.* =", text, re.M) for text in texts)


def test_the_layers_of_the_page_are_those_of_the_package():
    rows = re.findall(r"^\| \d \| (.*?) \|", PAGE, re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {path.parent.name for path in SOURCE.glob("*/__init__.py")}
