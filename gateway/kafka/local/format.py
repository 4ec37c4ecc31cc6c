"""Format log directories without a JVM.

`meta.properties` is written by this module. `bootstrap.checkpoint` holds the feature levels (and
SCRAM users). Without users it is the same for every node of every cluster, and Kafka's own storage
tool creates it once (1.4 s).
"""

from __future__ import annotations

import base64
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from gateway.errors import LocalBrokerError

from . import jars, java
from .properties import build_listener_properties, format_properties

_CHECKPOINT = "bootstrap.checkpoint"


def build_classpath(libs: Path) -> str:
    """Return the class path in a fixed order: a class archive fits no other one."""
    return ":".join(
        str(libs / name) for name in sorted(jar.file_name for jar in jars.read_pinned_jars())
    )


def load_checkpoint(cache: Path, scram: Sequence[str] = ()) -> bytes:
    """Return the checkpoint that a new log directory starts with, cached unless it has users."""
    if scram:
        return _build_checkpoint(cache, scram)
    path = cache / _CHECKPOINT
    if not path.exists():
        with jars.lock_cache(cache):
            part = path.with_suffix(".part")
            part.write_bytes(_build_checkpoint(cache, ()))
            part.rename(path)  # atomic: the others see all of it or nothing
    return path.read_bytes()


def format_directory(directory: Path, node: int, cluster: str, checkpoint: bytes) -> None:
    """Create and format the log directory of a node. A formatted one is left as it is."""
    if (directory / "meta.properties").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _CHECKPOINT).write_bytes(checkpoint)
    meta = {
        "version": "1",
        "cluster.id": cluster,
        "node.id": str(node),
        "directory.id": generate_id(),
    }
    (directory / "meta.properties").write_text(format_properties(meta))


def load_cluster_id(root: Path) -> str:
    for meta in sorted(root.glob("node-*/meta.properties")):
        for line in meta.read_text().splitlines():
            if line.startswith("cluster.id="):
                return line.partition("=")[2]
    return generate_id()


def generate_id() -> str:
    """Return a base64url UUID; a leading dash would be an option of the storage tool."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith(
        "-"
    ):
        pass
    return text


def _build_checkpoint(cache: Path, scram: Sequence[str]) -> bytes:
    libs = jars.fetch_jars(cache)
    with tempfile.TemporaryDirectory(prefix="gateway-kafka-") as name:
        config = Path(name) / "server.properties"
        logs = Path(name) / "logs"
        ports = {"PLAINTEXT": 1, "CONTROLLER": 2}  # only parsed, never bound
        config.write_text(
            format_properties(
                {"node.id": "1", "log.dirs": str(logs)}
                | build_listener_properties(ports, None, "1@127.0.0.1:2")
            )
        )
        options = [word for user in scram for word in ("--add-scram", user)]
        completed = subprocess.run(
            [
                *(str(java.find_java().path), *java.JVM_FLAGS, "-cp", build_classpath(libs)),
                *(
                    "kafka.tools.StorageTool",
                    "format",
                    "-t",
                    generate_id(),
                    "-c",
                    str(config),
                    *options,
                ),
            ],
            capture_output=True,
            text=True,
        )
        if completed.returncode:
            raise LocalBrokerError(
                f"Kafka's storage tool failed:\n{completed.stdout}{completed.stderr}"
            )
        return (logs / _CHECKPOINT).read_bytes()
