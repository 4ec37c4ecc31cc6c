"""What the page about the architecture names is in the package."""

from __future__ import annotations

import re

from support.doc_blocks import DOCS, ROOT

PAGE = (DOCS / "architecture.md").read_text()
SOURCE = ROOT / "gateway"


def test_modules_packages_registries_and_layers_of_the_page_exist():
    modules = re.findall(r"\b([a-z_]+(?:/[a-z_]+)*\.py)\b", PAGE)
    folders = re.findall(r"`([a-z_]+(?:/[a-z_]+)+)`", PAGE)
    for path in {*modules, *folders}:
        assert (SOURCE / path).exists() or (ROOT / path).exists(), path
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    for name in {*re.findall(r"`([A-Z]+_?[A-Z_]+)`", PAGE)} - {"HTTP", "ASGI"}:
        assert re.search(rf"^{name}\b.* =", text, re.M), name
    rows = re.findall(r"^\| \d \| (.*?) \|", PAGE, re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {path.parent.name for path in SOURCE.glob("*/__init__.py")}
