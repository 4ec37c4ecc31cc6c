"""Build what can be published into dist/: sdist, wheel, npm tarball, and the context of an image.

The context has the wheel in place of the source, so that the image holds the wheel that was tested.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SOURCE_STEPS = re.compile(r"COPY pyproject\.toml .*?\nRUN [^\n]*--no-deps \.\n", re.DOTALL)


def build_packages(out: Path) -> Path:
    """Build the sdist, and the wheel from the sdist, as an index would get them.

    Returns:
        The wheel.
    """
    _run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(out)], ROOT)
    (sdist,) = out.glob("*.tar.gz")
    unpacked = out / ".sdist"
    shutil.unpack_archive(sdist, unpacked, filter="data")
    (source,) = unpacked.iterdir()
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)], source)
    shutil.rmtree(unpacked)
    (wheel,) = out.glob("*.whl")
    return wheel


def build_module(out: Path) -> None:
    """Pack gateway.js as npm publishes it; without npm there is no tarball."""
    npm = shutil.which("npm")
    if npm is None:
        print("no npm: gateway.js is not packed; install Node.js with npm", file=sys.stderr)
        return
    module = ROOT / "gateway" / "web" / "js"
    _run([npm, "pack", "--silent", "--pack-destination", str(out), str(module)], out)


def write_image_context(out: Path, wheel: Path) -> None:
    """Write a folder for `docker build`: a Dockerfile, the wheel, the locks with checksums."""
    context = out / "image"
    context.mkdir()
    shutil.copy2(wheel, context)
    for lock in ("deploy/requirements.lock", "requirements-pipeline.lock"):
        shutil.copy2(ROOT / lock, context)
    text = (ROOT / "deploy" / "Dockerfile").read_text("utf-8")
    text = text.replace("COPY deploy/requirements.lock", "COPY requirements.lock")
    install = "RUN /opt/gateway/bin/pip install --no-cache-dir --no-deps ./*.whl\n"
    text, count = _SOURCE_STEPS.subn(f"COPY *.whl ./\n{install}", text)
    if count != 1:
        raise SystemExit("deploy/Dockerfile no longer installs the source where it did")
    usage = "# docker build -t gateway .\n# docker run -p 8080:8080 -v ./gateway.yaml:"
    text = usage + text.partition("/gateway.yaml:")[2]
    (context / "Dockerfile").write_text(text, "utf-8")
    (context / ".dockerignore").write_text("*\n!*.whl\n!*.lock\n", "utf-8")


def main() -> None:
    """Empty dist/, and build all into it."""
    out = ROOT / "dist"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    wheel = build_packages(out)
    build_module(out)
    write_image_context(out, wheel)
    for path in sorted(out.rglob("*")):
        if path.is_file():
            print(f"{path.stat().st_size / 1e6:6.2f} MB  {path.relative_to(out)}")


def _run(command: list[str], directory: Path) -> None:
    subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
