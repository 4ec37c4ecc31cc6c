"""Write docs/reference, or say with `--check` whether it is up to date (exit code 1 if not)."""

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
        print(f"wrote docs/{path}")


if __name__ == "__main__":
    main()
