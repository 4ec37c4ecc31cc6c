"""Create .venv, and install the packages of a lock and this project into it: `make` calls this.

A lock is complete, and every file has its checksum there: nothing is resolved, and Python compiles
what it imports when it does. That takes a third of the CPU of a plain `pip install`. `uv` does it
where it is installed.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = '#!/bin/sh\nexec "$(dirname "$(readlink -f "$0")")/python" -P -m {module} "$@"\n'
# What would lead packages, or the search for them, elsewhere.
FOREIGN_VARIABLES = re.compile(r"PYTHON(PATH|HOME)|PIP_(TARGET|PREFIX|ROOT|USER|DRY_RUN)")


def main() -> int:
    parser = argparse.ArgumentParser(description="Install the packages of a lock into .venv.")
    parser.add_argument("lock", type=Path)
    parser.add_argument("--size", default="", help="what is downloaded, such as 60 MB, to be told")
    options = parser.parse_args()
    for name in filter(FOREIGN_VARIABLES.fullmatch, list(os.environ)):
        del os.environ[name]
    os.environ["DIST_EXTRA_CONFIG"] = str(ROOT / "deploy" / "wheel.cfg")  # of setuptools
    directory = ROOT / ".venv"
    fcntl.flock(os.open(ROOT, os.O_RDONLY), fcntl.LOCK_EX)  # of `make demo` beside `make test`
    return install(directory, options.lock, options.size)


def install(directory: Path, lock: Path, size: str) -> int:
    """Return the exit status.

    The file `.root` says whose the environment is. It is there unless an installation was cut off,
    which may leave a package that is neither installed nor missing.
    """
    owner = directory / ".root"
    if not owner.exists() or owner.read_text() != str(ROOT) or not can_run(directory):
        create_environment(directory)
    owner.unlink(missing_ok=True)
    count = len(re.findall(r"^[\w.-]+==", lock.read_text(), re.MULTILINE))
    described = f", {size}" if size else ""
    print(f"{count} packages of {lock.name}{described}, into .venv", file=sys.stderr)
    status = install_packages(directory, lock, count)
    if not status:
        link_project(directory)
    owner.write_text(str(ROOT))
    return status


def can_run(directory: Path) -> bool:
    """Whether the Python is still there that the environment was created with."""
    python = directory / "bin" / "python"
    return python.exists() and not subprocess.run([python, "-c", ""]).returncode


def create_environment(directory: Path) -> None:
    """Create it with the pip that Python brings, unpacked: installing it takes 4 s of CPU."""
    wheel = find_bundled_pip()
    venv.create(directory, symlinks=True, clear=True, with_pip=wheel is None)
    if wheel is not None:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(find_site_packages(directory))
        write_script(directory / "bin" / "pip", SCRIPT.format(module="pip"))


def find_bundled_pip() -> Path | None:
    """Python's own, or that of Debian's python3-venv."""
    import ensurepip

    own = Path(ensurepip.__file__).parent / "_bundled"
    distributor = sysconfig.get_config_var("WHEEL_PKG_DIR")
    for folder in (own, *([Path(distributor)] if distributor else [])):
        if wheels := sorted(folder.glob("pip-*.whl")):
            return wheels[-1]
    return None


# Lines of pip that say what takes long.
LONG_STEP = re.compile(
    r"\s*(Downloading \S+ \(\d{2,}\.\d MB\)|Building wheel for \S+(?=.*started)"
    r"|Installing collected packages)"
)


def install_packages(directory: Path, lock: Path, count: int) -> int:
    """Return the exit status. The packages are counted as they come, and long steps named."""
    python = str(directory / "bin" / "python")
    options = ["install", "--no-deps", "--require-hashes", "-r", str(lock)]
    if uv := shutil.which("uv"):
        return subprocess.run([uv, "pip", *options, "--python", python]).returncode
    pip = [python, "-m", "pip", "--disable-pip-version-check", *options, "--no-compile"]
    output, fetched = [], 0
    overwrite = "\r" if sys.stderr.isatty() else ""
    with subprocess.Popen(
        [*pip, "--progress-bar", "off"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            fetched += line.startswith("Collecting ")
            if step := LONG_STEP.match(line):
                print(f"{overwrite}{fetched} of {count}: {step[1]}", file=sys.stderr, flush=True)
            elif overwrite:
                print(f"\r{fetched} of {count} fetched", end="", file=sys.stderr)
    if process.returncode:
        sys.stderr.writelines(output[-20:])
    return process.returncode


def link_project(directory: Path) -> None:
    """As an editable installation does, without building one."""
    (find_site_packages(directory) / "kafka-gateway.pth").write_text(f"{ROOT}\n")
    write_script(directory / "bin" / "gateway", SCRIPT.format(module="gateway"))


def find_site_packages(directory: Path) -> Path:
    paths = {"base": str(directory), "platbase": str(directory)}
    return Path(sysconfig.get_path("purelib", "venv", vars=paths))


def write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036  this script runs first
        sys.exit(
            f"{sys.executable} is not Python 3.11 or newer; install one (Debian: apt-get install "
            "python3 python3-venv), or name another: make PYTHON=python3.12"
        )
    try:
        import ensurepip  # noqa: F401  that Debian has in a package of its own
    except ImportError:
        sys.exit("this Python has no venv; on Debian: apt-get install python3-venv")
    sys.exit(main())
