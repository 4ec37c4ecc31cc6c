"""The images, built by buildah and run with a read-only root file system: `make image`.

There may be no registry of images, so the base is a Debian made by debootstrap, with its Python in
place of the one that the Dockerfile names. Building needs root, 2 GB of disk and some minutes.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.utils import canonicalize_name
from support.clients.raw import RawClient
from support.pipeline_process import produce_values
from support.ports import find_free_port
from support.waiting import wait_until

ROOT = Path(__file__).parents[2]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
BASE = """
FROM scratch
ADD rootfs.tar /
RUN ln -s python3 /usr/bin/python
# The authorities of this machine: what indexes are asked through may have one of its own.
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
ENV REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt
"""
# The root file system of the image, which nobody can write to, and what Docker mounts there.
START = """
set -e
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
mount -t tmpfs tmpfs "$1/tmp"
[ ! -d "$1/checkpoints" ] || mount -t tmpfs tmpfs "$1/checkpoints"
mount -t proc proc "$1/proc"
mount --bind /dev "$1/dev"
root=$1 folder=$2; shift 2
exec unshare --root="$root" --wd="$folder" setpriv --no-new-privs --bounding-set=-all \
    --inh-caps=-all --reuid 65534 --regid 65534 --clear-groups "$@"
"""

pytestmark = [
    pytest.mark.night,
    pytest.mark.timeout(3600),
]


class Image(NamedTuple):
    """root: its root file system, mounted. config: as the image says how it is run."""

    root: Path
    config: Any

    @property
    def environment(self) -> dict[str, str]:
        return dict(each.split("=", 1) for each in self.config["Env"])

    def build_command(self, *arguments: str) -> list[str]:
        """What runs a command of the image, confined as its user, without root or a way to it."""
        entry = self.config["Entrypoint"] if arguments[0] != "python" else []
        program, *rest = [*entry, *arguments]
        folder = f"{self.environment['PATH'].split(':')[0]}"
        words = [f"{folder}/{program}", *rest]
        script = ["sh", "-c", START, "sh", str(self.root), self.config["WorkingDir"], *words]
        return ["unshare", "--mount", "--propagation", "private", *script]


@pytest.fixture(scope="module")
def build_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Image]]:
    """Builds with options of `buildah build`."""
    folder = tmp_path_factory.mktemp("image")
    storage = ["--root", f"{folder}/storage", "--runroot", f"{folder}/run"]
    buildah = ["buildah", *storage, "--storage-driver", "vfs"]
    containers = []

    def run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout.strip()

    packages = "--include=python3,python3-venv,ca-certificates"
    rootfs = folder / "base" / "rootfs"
    rootfs.parent.mkdir()
    run("debootstrap", "--variant=minbase", packages, "stable", str(rootfs))
    shutil.copy2(CERTIFICATES, rootfs / str(CERTIFICATES).lstrip("/"))
    run("tar", "-C", str(rootfs), "-cf", f"{rootfs}.tar", ".")
    shutil.rmtree(rootfs)
    (rootfs.parent / "Dockerfile").write_text(BASE)
    build = [*buildah, "build", "--isolation", "chroot", "--format", "docker"]  # with HEALTHCHECK
    run(*build, "-t", "localhost/python", str(rootfs.parent))

    def build_image(*options: str) -> Image:
        name = f"localhost/image{len(containers)}"
        run(
            *build, "-t", name, *options, "--build-arg", "PYTHON=localhost/python",
            "--ignorefile", str(ROOT / "deploy" / "Dockerfile.dockerignore"),
            "-f", str(ROOT / "deploy" / "Dockerfile"), str(ROOT),
        )  # fmt: skip
        containers.append(run(*buildah, "from", name))
        inspected = json.loads(run(*buildah, "inspect", "--type", "image", name))
        root = Path(run(*buildah, "mount", containers[-1]))
        return Image(root, inspected["Docker"]["config"])

    try:
        yield build_image
    finally:
        for container in containers:
            run(*buildah, "rm", container)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def image(build_image: Callable[..., Image]) -> Image:
    return build_image()


@pytest.fixture(scope="module")
def pipeline_image(build_image: Callable[..., Image]) -> Image:
    return build_image("--target", "pipeline")


@pytest.mark.needs("buildah", "debootstrap")
async def test_the_image_streams_from_kafka_and_says_that_it_is_healthy(image, embedded, tmp_path):
    embedded.create_topic("orders", 1)
    port = find_free_port()
    variables = {**image.environment, "GATEWAY_LISTEN__PORT": str(port)}
    variables["GATEWAY_KAFKA__SERVERS"] = ",".join(embedded.bootstrap)
    log_path = tmp_path / "log"
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *image.build_command("run", "--topic", "orders", "--workers", "2"),
            env=variables, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        await wait_until(
            lambda: f"listening on http://0.0.0.0:{port}" in log_path.read_text(),
            log_path.read_text,
        )
        async with RawClient(f"http://127.0.0.1:{port}/events/orders") as client:
            await client.wait_for_events(1)
        check = image.config["Healthcheck"]["Test"]
        assert check[:2] == ["CMD", "gateway"]
        asked = await asyncio.create_subprocess_exec(
            *image.build_command(*check[2:]), env=variables
        )
        assert await asked.wait() == 0
        check_confinement(process.pid)
    finally:
        process.terminate()
        assert await process.wait() == 0, log_path.read_text()
    gone = await asyncio.create_subprocess_exec(
        *image.build_command(*check[2:]), env=variables, stderr=asyncio.subprocess.DEVNULL
    )
    assert await gone.wait() != 0


def check_confinement(pid: int) -> None:
    """As of `docker run --read-only --cap-drop ALL --security-opt no-new-privileges`."""
    status = Path(f"/proc/{pid}/status").read_text()
    for line in ("Uid:\t65534", "NoNewPrivs:\t1", "CapBnd:\t0000000000000000"):
        assert line in status


@pytest.mark.needs("buildah", "debootstrap")
def test_the_image_holds_what_the_lock_pins_and_nothing_that_installs(image: Image):
    program = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({d.name.lower(): d.version for d in m.distributions()}))"
    )
    done = subprocess.run(
        image.build_command("python", "-I", "-c", program), env=image.environment,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    installed = json.loads(done.stdout)
    lock = (ROOT / "deploy" / "requirements.lock").read_text()
    assert "pip" not in installed
    for name, version in installed.items():
        if name not in ("kafka-gateway", "setuptools"):
            assert f"\n{canonicalize_name(name)}=={version} " in lock, name
    assert image.config["User"] == "65534:65534"
    assert image.config["ExposedPorts"] == {"8080/tcp": {}}
    assert not (image.root / "src").exists()


@pytest.mark.needs("buildah", "debootstrap")
async def test_the_image_of_jobs_runs_one_and_ends_it_after_its_batch(
    pipeline_image, kafka, tmp_path
):
    kafka.create_topic("orders", 1)
    order = {"customer": "ada", "total": 20.0}
    produce_values(kafka.bootstrap_servers, "orders", [order], "customer")
    text = (ROOT / "deploy" / "pipeline" / "gateway.yaml").read_text()
    folder = pipeline_image.root / pipeline_image.config["WorkingDir"].lstrip("/")
    (folder / "gateway.yaml").write_text(text.replace("kafka:9092", kafka.bootstrap_servers))
    log_path = tmp_path / "log"
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *pipeline_image.build_command(*pipeline_image.config["Cmd"]),
            env=pipeline_image.environment, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        await wait_until(
            lambda: "1 rows in" in log_path.read_text(), log_path.read_text, timeout_s=300
        )
        check_confinement(process.pid)
    finally:
        process.terminate()
        assert await process.wait() == 0, log_path.read_text()
