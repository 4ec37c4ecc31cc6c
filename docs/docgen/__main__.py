"""Write the generated files, or say with `--check` if one is out of date (exit code 1)."""

from __future__ import annotations

import sys

from .pages import build_pages, find_outdated, write_pages


def main() -> None:
    """Run the command."""
    if sys.argv[1:] == ["--check"]:
        outdated = find_outdated(build_pages())
        if outdated:
            sys.exit(f"{', '.join(outdated)}: not up to date; run `make docs`")
        return
    for path in write_pages():
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
