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
from gateway.core.client.terms import EndReason
from gateway.web.app.app import create_app
from gateway.web.http import assets

MODULE = (assets.JS_DIRECTORY / "gateway.js").read_text()
TYPES = (assets.JS_DIRECTORY / "gateway.d.ts").read_text()
MAX_MODULE_BYTES = 14_000  # bytes, in gzip: what a page waits for before its first stream
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
    plain = await open_client().head(path, headers={"Accept-Encoding": "identity"})
    assert plain.headers["content-length"] == str(len(answer.content))
    assert (await open_client().post(path)).status_code == 405


async def test_the_module_is_compressed_for_clients_that_accept_it():
    """It was served as 45 kB to `Accept-Encoding: gzip`, too."""
    compressed = await open_client().get("/gateway.js", headers={"Accept-Encoding": "gzip"})
    plain = await open_client().get("/gateway.js", headers={"Accept-Encoding": "identity"})
    assert compressed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert compressed.content == plain.content
    for answer in (compressed, plain):
        assert answer.headers["vary"] == "Accept-Encoding"
    assert compressed.headers["etag"] != plain.headers["etag"]
    assert int(compressed.headers["content-length"]) < MAX_MODULE_BYTES


async def test_a_version_of_the_module_is_kept_for_ever():
    answer = await open_client().get(assets.VERSIONED_MODULE_PATH)
    assert answer.text == MODULE
    assert "immutable" in answer.headers["cache-control"]
    description = await open_client().get("/", headers={"Accept": "application/json"})
    link = description.json()["links"]["versionedModule"]
    assert link.endswith(assets.VERSIONED_MODULE_PATH)


async def test_another_version_is_answered_with_this_one_and_not_kept():
    """Replicas are not updated at once, and the worker of an old page may be started again."""
    answer = await open_client().get("/gateway-0123456789abcdef.js")
    assert answer.text == MODULE
    assert answer.headers["cache-control"] == "no-cache"
    assert (await open_client().get("/gateway-status.js")).status_code == 404


@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}', "*"])
async def test_who_has_it_gets_no_body(form: str):
    tag = (await open_client().get("/gateway.js")).headers["etag"]
    assert re.fullmatch(r'"[0-9a-f]{32}-gzip"', tag)
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


def test_the_reasons_that_end_a_stream_for_good_are_reasons_of_the_gateway():
    source = (JS_SOURCE_DIRECTORY / "multiplexer" / "multiplexer.js").read_text()
    (listed,) = re.findall(r"FINAL_END_REASONS = new Set\(\[(.*?)\]\)", source, re.S)
    assert {EndReason(each) for each in re.findall(r'"([^"]+)"', listed)}


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
    assert "dependencies" not in PACKAGE
    optional = PACKAGE["peerDependenciesMeta"]
    assert all(optional[name]["optional"] for name in PACKAGE["peerDependencies"])


def test_its_version_is_that_of_the_gateway():
    assert PACKAGE["version"] == gateway.__version__


@pytest.mark.needs("npm")
def test_the_npm_package_holds_the_module_its_hook_their_types_and_what_is_said_of_them(tmp_path):
    with tarfile.open(pack_module(tmp_path)) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
    assert names == {
        *("LICENSE", "README.md", "package.json"),
        *("gateway.d.ts", "gateway.js", "react.d.ts", "react.js"),
    }
    named = {PACKAGE["types"]}
    for target in PACKAGE["exports"].values():
        named |= {target} if isinstance(target, str) else set(target.values())
    assert {name.removeprefix("./") for name in named} <= names


def pack_module(directory: Path) -> Path:
    source = directory / "js"
    shutil.copytree(
        assets.JS_DIRECTORY, source, ignore=shutil.ignore_patterns("node_modules", "src")
    )
    command = ["npm", "pack", "--silent", "--offline", "--pack-destination", str(directory)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=60)
    (packed,) = directory.glob("*.tgz")
    return packed


def test_the_license_of_the_npm_package_is_that_of_the_project():
    project_license = Path(__file__).parents[3] / "LICENSE"
    assert (assets.JS_DIRECTORY / "LICENSE").read_text() == project_license.read_text()


COMPILER = (
    *("--noEmit", "--strict", "--exactOptionalPropertyTypes", "--noUncheckedIndexedAccess"),
    *("--target", "es2022"),
)
RESOLUTIONS = {
    "node": ("--module", "nodenext"),
    "bundler": ("--module", "esnext", "--moduleResolution", "bundler"),
}


def compile_types(directory: Path, *, lib: str) -> str:
    """What TypeScript has to say of the module's types in use."""
    for file in (assets.JS_DIRECTORY / "gateway.d.ts", SOURCE_DIRECTORY / "types.ts"):
        shutil.copy(file, directory)
    (directory / "package.json").write_text('{"type": "module"}')
    return run_compiler(directory, *RESOLUTIONS["node"], "--lib", lib, "types.ts")


def run_compiler(directory: Path, *arguments: str) -> str:
    tsc = ensure_installed() / "node_modules" / "typescript" / "bin" / "tsc"
    command = ["node", str(tsc), *COMPILER, *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=90)
    return done.stdout + done.stderr


@pytest.mark.needs("node", "npm")
def test_typescript_takes_the_types_and_finds_what_is_wrong_with_a_use(tmp_path: Path):
    assert compile_types(tmp_path, lib="es2022,dom,dom.iterable") == ""


@pytest.mark.needs("node", "npm")
@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_an_application_imports_the_package_and_its_hook_with_types(resolution, tmp_path):
    """The hook was a file of an example, without types, that imported an address of the gateway."""
    packages = tmp_path / "node_modules"
    packages.mkdir()
    with tarfile.open(pack_module(tmp_path)) as archive:
        archive.extractall(packages, filter="data")
    (packages / "package").rename(packages / "gateway.js")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(SOURCE_DIRECTORY / "react-types.ts", tmp_path)
    lib = ("--lib", "es2022,dom,dom.iterable")
    assert run_compiler(tmp_path, *RESOLUTIONS[resolution], *lib, "react-types.ts") == ""
