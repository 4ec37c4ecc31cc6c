"""The site is built, with every page in its navigation and every link leading somewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.doc_blocks import DOCS, ROOT, list_pages

CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]


def iter_targets(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for each in entry.values() if isinstance(entry, dict) else [entry]:
            yield from iter_targets(each) if isinstance(each, list) else [each]


def test_every_page_is_in_the_navigation_once():
    listed = list(iter_targets(CONFIG["nav"]))
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in list_pages())


def test_every_page_has_one_title_and_text_below_it():
    for page in list_pages():
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        titles = re.findall(r"^# .+\n+(.*)", text, re.M)
        assert len(titles) == 1 and titles[0], page


def build_site(directory: Path) -> subprocess.CompletedProcess[str]:
    """Build a copy of the documentation that lies there, so that nothing is written here."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    return subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("docs")
    shutil.copytree(DOCS, directory / "docs")
    shutil.copy(ROOT / "zensical.toml", directory)
    return directory


@pytest.mark.needs("docs")
def test_the_site_is_built_without_a_link_that_leads_nowhere(copied: Path):
    done = build_site(copied)
    assert done.returncode == 0, done.stdout + done.stderr
    index = json.loads((copied / "site" / "search.json").read_text())
    found = {item["location"] for item in index["items"]}
    assert "reference/configuration/listen/#listenlimits" in found
    for page in (copied / "site").rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link)\b[^>]*\b(?:src|href)="(https?:[^"]+)"', page.read_text()
        )
        assert not [url for url in loaded if "canonical" not in url], page


@pytest.mark.needs("docs")
@pytest.mark.parametrize("link", ["nowhere.md", "threat-model.md#nowhere"])
def test_a_link_that_leads_nowhere_ends_the_build(link: str, tmp_path: Path):
    (tmp_path / "docs").mkdir()
    shutil.copy(DOCS / "threat-model.md", tmp_path / "docs")
    (tmp_path / "docs" / "index.md").write_text(f"# Home\n\n[There]({link})\n")
    text = (ROOT / "zensical.toml").read_text()
    nav = '"index.md", "threat-model.md"'
    (tmp_path / "zensical.toml").write_text(
        re.sub(r"^nav = \[.*?^\]", f"nav = [{nav}]", text, flags=re.M | re.S)
    )
    assert build_site(tmp_path).returncode != 0
