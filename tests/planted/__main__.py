"""Put each planted fault into a copy of the repository, and see which tests find it.

    PYTHONPATH=tests python -m planted --output found.jsonl --pytest-args='--tier test'

A fault counts as found if a test fails with it and passes without it. The nearest tests run first,
and all of them only if none of those fails. What the output says of the same commit and the same
arguments is not tried again. The exit status is 0 if all are found. `found.json` names a test that
found each.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from .faults import FAULTS, PlantedFault

ROOT = Path(__file__).parents[2]


class RunFailed(Exception):
    """The fault cannot be planted, or pytest neither passed nor found a failing test."""


class Copy:
    """A copy of a repository's HEAD, in which faults are planted and tests run."""

    def __init__(self, root: Path, timeout_s: float, pytest_args: Sequence[str]) -> None:
        self.root = root
        self.timeout_s = timeout_s
        self.pytest_args = pytest_args
        self.command = ""  # the last one
        hidden = ("CI", "PYTHONDONTWRITEBYTECODE")
        self._env = {name: value for name, value in os.environ.items() if name not in hidden}
        self._env["PYTHONPATH"] = str(root)  # before what is installed

    def check_import(self) -> None:
        """Check that it is the copy's `gateway` that its tests import."""
        code = "import gateway; print(gateway.__file__)"
        command = [sys.executable, "-c", code]
        imported = subprocess.check_output(command, cwd=self.root, env=self._env, text=True).strip()
        if Path(imported) != self.root / "gateway" / "__init__.py":
            raise SystemExit(f"the tests would import {imported}")

    def try_fault(self, fault: PlantedFault, then: Sequence[str]) -> dict[str, Any]:
        """Return what the output says of a fault."""
        began, path = time.monotonic(), self.root / fault.path
        original = path.read_text(encoding="utf-8")
        result: dict[str, Any] = {"name": fault.name, "found": False, "by": []}
        try:
            path.write_text(plant(fault, original), encoding="utf-8")
            result["by"] = self._run_tests(fault.tests) or self._run_tests(then, is_whole=True)
            result["command"] = self.command
            path.write_text(original, encoding="utf-8")
            if result["by"]:
                result["found"] = not self._run_tests(result["by"], is_whole=True)
                result["flaky"] = not result["found"]
        except RunFailed as exc:
            result |= {"error": str(exc), "command": self.command}
        finally:
            path.write_text(original, encoding="utf-8")
        return result | {"seconds": round(time.monotonic() - began, 1)}

    def _run_tests(self, tests: Sequence[str], *, is_whole: bool = False) -> list[str]:
        """Return the ids of the tests that fail.

        Args:
            tests: Paths or ids. Paths that the copy does not have are left out.
            is_whole: Whether it is an error that none of the tests is selected.

        Raises:
            RunFailed: The run neither passed nor found a failing test.
        """
        tests = [test for test in tests if (self.root / test.partition("::")[0]).exists()]
        if not tests and not is_whole:
            return []
        options = ["-x", "-q", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", *options, *tests, *self.pytest_args]
        self.command = shlex.join(command[1:])
        code, output = self._run(command)
        failed = [
            line.partition(" ")[2].partition(" - ")[0]
            for line in output.splitlines()
            if line.startswith(("FAILED tests/", "ERROR tests/"))
        ]
        if code == pytest.ExitCode.TESTS_FAILED and failed:
            return failed
        is_empty = code == pytest.ExitCode.NO_TESTS_COLLECTED
        if code == pytest.ExitCode.OK or (is_empty and not is_whole):
            return []
        end = " | ".join(output.strip().splitlines()[-5:])
        raise RunFailed(f"pytest ended with {code}: {end}")

    def _run(self, command: Sequence[str]) -> tuple[int, str]:
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
            subprocess.Popen(
                command,
                cwd=self.root,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process,
        ):
            try:
                code = process.wait(self.timeout_s)
            except subprocess.TimeoutExpired:
                raise RunFailed(f"no end within {self.timeout_s:.0f} s") from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            output.seek(0)
            return code, output.read()


def plant(fault: PlantedFault, text: str) -> str:
    """Return the text of a file with a fault in it."""
    if text.count(fault.old) != 1:
        raise RunFailed(f"{fault.name}: {fault.path} has its text {text.count(fault.old)} times")
    return text.replace(fault.old, fault.new)


def check(faults: Sequence[PlantedFault]) -> None:
    """Check that faults can be planted, and that what comes of it compiles."""
    if len({fault.name for fault in FAULTS}) < len(FAULTS):
        raise SystemExit("two faults have the same name")
    for fault in faults:
        text = plant(fault, (ROOT / fault.path).read_text(encoding="utf-8"))
        compile(text, fault.path, "exec")
    print(f"{len(faults)} faults can be planted")


def read_results(path: Path, of: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results of a commit and of arguments, but for those that failed to be any."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    results = (result for result in map(json.loads, lines) if "error" not in result)
    return {each["name"]: each for each in results if all(each.get(k) == of[k] for k in of)}


def describe(result: dict[str, Any] | None) -> str:
    if result is None:
        return "not tried"
    if "error" in result:
        return f"ERROR: {result['error']}"
    by = ", ".join(result["by"])
    return by if result["found"] else f"flaky: {by}" if by else "NOT FOUND"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m planted", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--check", action="store_true", help="see only whether they can be planted")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the repository whose HEAD is used")
    parser.add_argument("--only", action="append", metavar="NAME", help="a fault; repeatable")
    parser.add_argument("--then", nargs="+", default=["tests"], metavar="PATH", help="all tests")
    parser.add_argument(
        "--timeout", type=float, default=1800.0, help="seconds of one run of pytest"
    )
    parser.add_argument("--pytest-args", type=shlex.split, default=[], help="more arguments")
    parser.add_argument("--output", type=Path, help="where JSON lines are appended")
    arguments = parser.parse_args()
    if unknown := set(arguments.only or ()) - {fault.name for fault in FAULTS}:
        parser.error(f"there is no fault {min(unknown)}")
    if arguments.output is None and not arguments.check:
        parser.error("--output or --check is needed")
    return arguments


def run_git(tree: Path, *arguments: str) -> str:
    return subprocess.check_output(["git", "-C", str(tree), *arguments], text=True).strip()


def main() -> int:
    arguments = parse_arguments()
    faults = [fault for fault in FAULTS if not arguments.only or fault.name in arguments.only]
    if arguments.check:
        try:
            check(faults)
            return 0
        except (RunFailed, SyntaxError) as exc:
            raise SystemExit(str(exc)) from None
    if run_git(arguments.tree, "status", "--porcelain"):
        print("what is not committed is not in the copy", file=sys.stderr)
    commit = run_git(arguments.tree, "rev-parse", "HEAD")
    of = {"commit": commit, "arguments": [*arguments.pytest_args, "--", *arguments.then]}
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        root = Path(directory).resolve() / "gateway"
        clone = ["git", "clone", "--quiet", "--shared", str(arguments.tree.resolve()), str(root)]
        subprocess.run(clone, check=True)
        copy = Copy(root, arguments.timeout, arguments.pytest_args)
        copy.check_import()
        for fault in faults:
            if fault.name in read_results(arguments.output, of):
                continue
            result = of | copy.try_fault(fault, arguments.then)
            with arguments.output.open("a", encoding="utf-8") as output:
                output.write(json.dumps(result) + "\n")
            print(f"{fault.name}: {describe(result)} ({result['seconds']} s)", flush=True)
    results = read_results(arguments.output, of)
    found = sum(results.get(each.name, {}).get("found", False) for each in faults)
    print(f"\n{found} of {len(faults)} found")
    for fault in faults:
        print(f"{fault.name:40} {describe(results.get(fault.name))}")
    return int(found < len(faults))


if __name__ == "__main__":
    sys.exit(main())
