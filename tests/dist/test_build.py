"""What is built holds what the source holds."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.source_tree import copy_source, list_source_files

pytestmark = pytest.mark.needs("build")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which `npm ci` was run in the examples."""
    tree = copy_source(tmp_path_factory.mktemp("clone"))
    for example in ("react", "typescript"):
        modules = tree / "examples" / example / "node_modules"
        modules.mkdir()
        (modules / "gateway.js").symlink_to(Path("..", "..", "..", "gateway", "web", "js"))
    return tree


def build(place: Path, target: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(place / "out")]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = (place / "out").glob("*.tar.gz" if target == "sdist" else "*.whl")
    return built


def test_a_wheel_by_way_of_the_sdist_has_all_files_also_after_npm_ci(tree: Path):
    """Examples link node_modules/gateway.js to gateway/web/js: the build met the link first, and
    left the folder itself out, so that `gateway run` ended with FileNotFoundError."""
    sdist = build(tree, "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tree / "unpacked", filter="data")
    (unpacked,) = (tree / "unpacked").iterdir()
    with zipfile.ZipFile(build(unpacked, "wheel")) as wheel:
        built = {name for name in wheel.namelist() if name.startswith("gateway/")}
    sources = {n for n in list_source_files("gateway") if not n.startswith("gateway/web/js/src/")}
    assert sources - built == set()
    assert {name for name in built - sources if "node_modules" in name} == set()
