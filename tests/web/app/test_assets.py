from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.clients.node_sse import SOURCE_DIRECTORY, ensure_installed, install_packages
from support.gateways import build_config

import gateway
from gateway.config import Settings
from gateway.web.app import assets
from gateway.web.app.app import create_app

MODULE = (assets.JS_DIRECTORY / "gateway.js").read_text()
TYPES = (assets.JS_DIRECTORY / "gateway.d.ts").read_text()
JS_SOURCE_DIRECTORY = assets.JS_DIRECTORY / "src"
PACKAGE = json.loads((assets.JS_DIRECTORY / "package.json").read_text())


def open_client(**sections: Any) -> httpx.AsyncClient:
    app = create_app(Settings.model_validate(build_config(["localhost:9092"], ["a"], **sections)))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/gateway.js", "text/javascript; charset=utf-8"),
        ("/gateway.d.ts", "application/typescript; charset=utf-8"),
    ],
)
async def test_the_module_and_its_types_are_served_for_revalidation(path: str, kind: str):
    answer = await open_client().get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == kind
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.content == (assets.JS_DIRECTORY / path[1:]).read_bytes()
    assert (await open_client().head(path)).headers["content-length"] == str(len(answer.content))
    assert (await open_client().post(path)).status_code == 405


@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}', "*"])
async def test_who_has_it_gets_no_body(form: str):
    tag = (await open_client().get("/gateway.js")).headers["etag"]
    assert re.fullmatch(r'"[0-9a-f]{32}"', tag)
    answer = await open_client().get("/gateway.js", headers={"If-None-Match": form.format(tag)})
    assert (answer.status_code, answer.content) == (304, b"")
    assert answer.headers["etag"] == tag
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("condition", ["", '"other"', "other", '"'])
async def test_who_has_another_gets_it(condition: str):
    answer = await open_client().get("/gateway.js", headers={"If-None-Match": condition})
    assert answer.status_code == 200
    assert answer.content


async def test_a_page_of_another_origin_may_import_it_where_it_may_read_streams():
    asked = {"Origin": "https://elsewhere.example"}
    assert (
        "access-control-allow-origin"
        not in (await open_client().get("/gateway.js", headers=asked)).headers
    )
    access = {"access-control": {"policy": "cross-origin"}}
    reads = {"when": [{"path": "/a"}], "with": {"topic": "a"}}
    for sections in ({"listen": access}, {"routes": [{**reads, **access}]}):
        answer = await open_client(**sections).get("/gateway.js", headers=asked)
        assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.needs("npm")
def test_the_module_is_the_bundle_of_its_sources(tmp_path: Path):
    """Else a source was edited, and `make js` was not run."""
    locked = [JS_SOURCE_DIRECTORY / name for name in ("package.json", "package-lock.json")]
    installed = install_packages("bundler", locked)
    without_packages = shutil.ignore_patterns("node_modules")
    source = shutil.copytree(JS_SOURCE_DIRECTORY, tmp_path / "src", ignore=without_packages)
    (source / "node_modules").symlink_to(installed / "node_modules")
    command = ["npm", "run", "build", "--silent", "--offline"]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=60)
    assert (tmp_path / "gateway.js").read_text() == MODULE


def test_the_lock_of_the_bundler_names_no_host():
    lock = json.loads((JS_SOURCE_DIRECTORY / "package-lock.json").read_text())
    packages = [entry for name, entry in lock["packages"].items() if name]
    assert packages
    assert all("integrity" in entry and "resolved" not in entry for entry in packages)


def test_the_types_name_all_that_is_exported():
    (exported,) = re.findall(r"\bexport\{([\w,\s]+)\};?\s*$", MODULE)
    names = set(re.findall(r"\w+", exported))
    assert names == {"Stream", "StreamError", "connect"}
    assert names <= set(re.findall(r"^export (?:class|function) (\w+)", TYPES, re.M))


def test_the_module_needs_nothing_but_itself():
    assert not re.search(r"\bimport\s*[\w{*(\"']|\bfrom\s*[\"']|\brequire\(", MODULE)
    assert not {"dependencies", "peerDependencies"} & PACKAGE.keys()


def test_its_version_is_that_of_the_gateway():
    assert PACKAGE["version"] == gateway.__version__


@pytest.mark.needs("npm")
def test_the_npm_package_holds_the_module_its_types_and_what_is_said_of_them(tmp_path: Path):
    source = shutil.copytree(assets.JS_DIRECTORY, tmp_path / "js")
    command = ["npm", "pack", "--silent", "--offline", "--pack-destination", str(tmp_path)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=60)
    (packed,) = tmp_path.glob("*.tgz")
    with tarfile.open(packed) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
    assert names == {"README.md", "gateway.d.ts", "gateway.js", "package.json"}
    named = {PACKAGE["types"], *PACKAGE["exports"]["."].values()}
    assert {name.removeprefix("./") for name in named} <= names


COMPILER = ("--noEmit", "--strict", "--target", "es2022", "--module", "nodenext")


def compile_types(directory: Path, *, lib: str) -> str:
    """What TypeScript has to say of the module's types in use."""
    for file in (assets.JS_DIRECTORY / "gateway.d.ts", SOURCE_DIRECTORY / "types.ts"):
        shutil.copy(file, directory)
    (directory / "package.json").write_text('{"type": "module"}')
    tsc = ensure_installed() / "node_modules" / "typescript" / "bin" / "tsc"
    command = ["node", str(tsc), *COMPILER, "--lib", lib, "types.ts"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=90)
    return done.stdout + done.stderr


@pytest.mark.needs("node", "npm")
def test_typescript_takes_the_types_and_finds_what_is_wrong_with_a_use(tmp_path: Path):
    assert compile_types(tmp_path, lib="es2022,dom,dom.iterable") == ""
