"""The project's shell agrees with itself."""

from __future__ import annotations

import itertools
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support import requirements

import gateway
from gateway.extras import DISTRIBUTION, EXTRA_MODULES

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAME = PROJECT["project"]["name"]


def locked() -> dict[str, str]:
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements.lock").read_text(), re.M)
    return {canonicalize_name(name): version for name, version in pins}


def declared() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"]
    texts = [*PROJECT["project"]["dependencies"], *itertools.chain(*extras.values())]
    return [each for each in map(Requirement, texts) if each.name != NAME]


def test_the_lock_pins_what_the_project_asks_for():
    pins = locked()
    for requirement in declared():
        version = pins.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not in requirements.lock: make lock"
        assert requirement.specifier.contains(version), f"{requirement} is newer: make lock"


@pytest.mark.parametrize("extra", EXTRA_MODULES)
def test_an_extra_installs_the_modules_that_are_asked_for(extra):
    """And what a message suggests is an extra that exists."""
    brought = {
        canonicalize_name(Requirement(each).name)
        for each in PROJECT["project"]["optional-dependencies"][extra]
    }
    providers = metadata.packages_distributions()
    for module in EXTRA_MODULES[extra]:
        found = {canonicalize_name(each) for each in providers.get(module.partition(".")[0], ())}
        assert brought & found or not found, f"{module} is brought by {found}"
    assert DISTRIBUTION == NAME


def test_all_is_every_extra_for_users():
    extras = PROJECT["project"]["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.extras == set(EXTRA_MODULES)


def list_requirements(name: str) -> list[str]:
    """Those of a distribution; none if it is not installed, as most are not for the first tier."""
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def test_the_lock_holds_all_that_its_packages_ask_for():
    """Also what only newer Pythons would need: a marker of 3.12 or 3.13 must not add a name."""
    pins = locked()
    for python in ("3.11", "3.12", "3.13", "3.14"):
        environment = {**default_environment(), "python_version": python, "extra": ""}
        environment["python_full_version"] = f"{python}.0"
        for name in pins:
            for needed in map(Requirement, list_requirements(name)):
                if needed.marker is None or needed.marker.evaluate(environment):
                    assert canonicalize_name(needed.name) in pins, f"{name} on Python {python}"


def test_every_pin_has_a_checksum_and_no_host_is_named():
    text = (ROOT / "requirements.lock").read_text()
    blocks = re.split(r"^(?=[\w.-]+==)", text, flags=re.M)[1:]
    assert blocks
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in text


def test_what_is_installed_is_what_is_locked():
    installed = {canonicalize_name(each.name): each.version for each in metadata.distributions()}
    pins = locked()
    wrong = {
        name: version for name, version in installed.items() if pins.get(name, version) != version
    }
    assert not wrong, "make setup"


def test_the_version_stands_in_one_place():
    assert "version" in PROJECT["project"]["dynamic"]
    assert f"## {gateway.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_a_missing_piece_skips_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(requirements, "is_installed", lambda piece: False)
    with pytest.raises(pytest.skip.Exception, match=r"apt-get install .* chromium chromium-driver"):
        requirements.require_tools("chromium")


def test_a_missing_piece_fails_in_ci(monkeypatch):
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(requirements, "is_installed", lambda piece: piece != "npm")
    with pytest.raises(pytest.fail.Exception, match="needs npm: apt-get install"):
        requirements.require_tools("node", "npm")


def test_pieces_at_hand_are_no_hindrance(monkeypatch):
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(requirements, "is_installed", lambda piece: True)
    requirements.require_tools(*requirements.TOOLS)


def test_ci_installs_what_the_tests_may_need():
    script = (ROOT / ".ci" / "run").read_text()
    for piece in ("chromium", "curl", "java17", "nginx", "node", "npm"):
        *_, packages = requirements.TOOLS[piece].install_command.partition(
            "--no-install-recommends "
        )
        assert all(package in script for package in packages.split())
