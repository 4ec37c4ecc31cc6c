"""What `make dist` builds, installed into empty environments, does its main job there."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.brokers import embedded_kafka
from support.ports import find_free_port
from support.records import produce_records
from support.requirements import skip_or_fail
from support.source_tree import copy_source

from gateway.kafka.embedded import EmbeddedKafka

MAX_PACKAGES = 40  # 38, and pip
MAX_SIZE_MB = 95  # of site-packages, without pip: 93 with Python 3.11
START_TIMEOUT_S = 60.0

pytestmark = pytest.mark.needs("build")

kafka = embedded_kafka({"orders": 1})


def run(*command: str | Path, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a command without the paths by which the tests find the source."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GATEWAY_"))}
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=timeout, env=environment
    )


def install(*command: str | Path, cwd: Path) -> None:
    """Run an installer; without its registry the test is skipped, or fails in CI."""
    done = run(*command, cwd=cwd)
    if done.returncode:
        skip_or_fail(f"{' '.join(map(str, command))}: {done.stderr[-800:]}")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = copy_source(tmp_path_factory.mktemp("clone"))
    done = run(sys.executable, tree / "deploy" / "build_dist.py", cwd=tree)
    assert done.returncode == 0, done.stderr
    return tree / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment with the wheel and no extra."""
    place = tmp_path_factory.mktemp("core")
    install(sys.executable, "-m", "venv", place, cwd=place)
    install(place / "bin" / "pip", "install", "--quiet", wheel, cwd=place)
    return place / "bin"


def write_config(place: Path, config: Mapping[str, object]) -> Path:
    file = place / "gateway.yaml"
    file.write_text(json.dumps(config))
    return file


def test_a_plain_install_is_small(core: Path, tmp_path: Path):
    """62 packages and 200 MB were needed to stream JSON."""
    listed = json.loads(run(core / "pip", "list", "--format=json", cwd=tmp_path).stdout)
    assert {each["name"] for each in listed} >= {"kafka-gateway", "aiokafka"}
    assert len([each for each in listed if each["name"] != "setuptools"]) <= MAX_PACKAGES
    (packages,) = core.parent.glob("lib/python*/site-packages")
    sizes = [
        path.stat().st_size
        for path in packages.rglob("*")
        if path.is_file() and path.relative_to(packages).parts[0].partition("-")[0]
        not in ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    ]  # fmt: skip
    assert sum(sizes) / 1e6 <= MAX_SIZE_MB


async def test_a_plain_install_streams_records(core: Path, kafka: EmbeddedKafka, tmp_path: Path):
    await produce_records(kafka.bootstrap, "orders", [b'{"id": 1}'])
    port = find_free_port()
    config = {
        "listen": {"port": port},
        "kafka": {"servers": list(kafka.bootstrap), "topics": [{"name": "orders"}]},
        "routes": [{"when": [{"path": "/orders"}], "with": {"topic": "orders"}}],
    }
    file = write_config(tmp_path, config)
    process = await asyncio.create_subprocess_exec(
        core / "gateway", "run", "-c", file, cwd=tmp_path, stdout=subprocess.PIPE, stderr=-2
    )
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            command = [core / "gateway", "health", "-c", file]
            while (await asyncio.to_thread(run, *command, cwd=tmp_path)).returncode:
                assert process.returncode is None
        url = f"http://127.0.0.1:{port}/orders?from=earliest&until=latest"
        tail = await asyncio.to_thread(run, core / "gateway", "tail", url, cwd=tmp_path)
        assert '"id"' in tail.stdout, tail.stderr
    finally:
        process.terminate()
        await process.communicate()


def test_a_plain_install_names_the_extra_of_what_it_lacks(core: Path, tmp_path: Path):
    file = write_config(
        tmp_path,
        {
            "catalogs": {"r": {"type": "schema-registry", "url": "http://127.0.0.1:1"}},
            "kafka": {
                "servers": ["127.0.0.1:1"],
                "topics": [{"name": "orders", "value": {"model": "protobuf", "catalog": "r"}}],
            },
        },
    )
    check = run(core / "gateway", "check", file, cwd=tmp_path)
    assert check.returncode == 78 and "'kafka-gateway[protobuf]'" in check.stdout + check.stderr
    demo = run(core / "gateway", "demo", "--port", "0", "--no-browser", cwd=tmp_path)
    assert demo.returncode == 1 and "'kafka-gateway[demo]'" in demo.stderr


def test_health_of_a_gateway_that_does_not_run_is_one_line(core: Path, tmp_path: Path):
    port = find_free_port()
    file = write_config(tmp_path, {"listen": {"port": port}, "kafka": {"servers": ["a:9092"]}})
    done = run(core / "gateway", "health", "-c", file, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"http://127.0.0.1:{port}/health/live" in line


async def test_with_its_extra_the_demo_runs(core: Path, wheel: Path, tmp_path: Path):
    install(core / "pip", "install", "--quiet", f"{wheel}[demo]", cwd=tmp_path)
    process = await asyncio.create_subprocess_exec(
        core / "gateway", "demo", "--port", "0", "--no-browser", cwd=tmp_path, stdout=-1, stderr=-2
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while b"http://127.0.0.1:" not in await process.stdout.readline():
                assert process.returncode is None
    finally:
        process.terminate()
        await process.communicate()


VITE_PROJECT = {
    "package.json": json.dumps(
        {
            "private": True,
            "type": "module",
            "scripts": {"build": "tsc && vite build"},
            "dependencies": {"react": "19.3.1", "react-dom": "19.3.1"},
            "devDependencies": {"typescript": "5.9.3", "vite": "^7.0.0", "@types/react": "^19.0.0"},
        }
    ),
    "tsconfig.json": json.dumps(
        {
            "compilerOptions": {
                "target": "es2022", "module": "esnext", "moduleResolution": "bundler",
                "lib": ["es2023", "dom"], "jsx": "react-jsx", "strict": True,
                "exactOptionalPropertyTypes": True, "noEmit": True,
            },
            "include": ["main.tsx"],
        }
    ),
    "index.html": '<script type="module" src="/main.tsx"></script>',
    "main.tsx": """
import { connect } from "gateway.js";
import * as hooks from "gateway.js/react";
console.log(hooks);
connect<{ id: number }>("/orders", { onrecord: (record) => console.log(record) });
""",
}  # fmt: skip


@pytest.mark.needs("node", "npm")
def test_the_npm_tarball_builds_in_a_typescript_project_of_vite_and_react(
    dist: Path, tmp_path: Path
):
    """A page of one's own could not use the React hook: it had no types, and was in no package."""
    (tarball,) = dist.glob("*.tgz")
    for name, text in VITE_PROJECT.items():
        (tmp_path / name).write_text(text)
    install("npm", "install", "--silent", "--no-audit", "--no-fund", tarball, cwd=tmp_path)
    installed = tmp_path / "node_modules" / "gateway.js"
    assert (installed / "LICENSE").is_file() and (installed / "README.md").is_file()
    built = run("npm", "run", "build", cwd=tmp_path)
    assert built.returncode == 0, built.stdout + built.stderr
    assert list((tmp_path / "dist" / "assets").glob("*.js"))


def test_the_context_of_the_image_holds_all_that_its_dockerfile_copies(dist: Path):
    context = dist / "image"
    text = (context / "Dockerfile").read_text()
    copied = [line.split()[1] for line in text.splitlines() if line.startswith("COPY ")]
    assert all(list(context.glob(name)) for name in copied if not name.startswith("--from"))
    assert "--require-hashes" in text and "HEALTHCHECK" in text
