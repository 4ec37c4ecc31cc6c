"""Configurations of Zilla, and what `gateway migrate` makes of them.

migration = migrate_text("zilla.yaml", text)
migration.settings.routes
migration.find("bindings.kafka_client.options.servers[0]").kind
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from gateway.cli.migrate import migrate_source
from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import MigrationReport, Outcome, read_source
from gateway.cli.migrate.validation import build_example_environment
from gateway.config import Settings, loads
from gateway.config.source.problems import format_loc

SOURCES = Path(__file__).parents[1] / "cli" / "migrate" / "sources"


class Migration(NamedTuple):
    """What became of a file."""

    draft: Draft
    text: str
    settings: Settings

    @property
    def report(self) -> MigrationReport:
        return self.draft.report

    @property
    def values(self) -> dict[str, Any]:
        return self.draft.values

    def find(self, path: str) -> Outcome:
        """The outcome of the leaf at a path such as `consumers[0].name`."""
        outcomes = {format_loc(loc): each for loc, each in self.report.outcomes.items()}
        return outcomes[path]

    def list_omitted(self) -> dict[str, str]:
        """The paths that were not carried, each with the reason."""
        return {format_loc(each.loc): each.reason for each in self.report.omissions}


def list_sources(*prefixes: str) -> list[Path]:
    """The files whose names begin so; all without a prefix."""
    files = sorted(path for path in SOURCES.iterdir() if path.is_file())
    return [path for path in files if not prefixes or path.name.startswith(prefixes)]


def migrate_file(file: Path, output: Path | None = None) -> Migration:
    """Migrate a file, without the command line. output: where it would be written."""
    draft, written = migrate_source(
        read_source(file), file, file.parent / "gateway.yaml" if output is None else output
    )
    assert written is not None, "no route is left"
    environ = build_example_environment(draft, file)
    return Migration(draft, written.text, loads(written.text, name=str(file), environ=environ))


def migrate_text(directory: Path, name: str, text: str) -> Migration:
    """Migrate a text that is a file of this name."""
    file = directory / name
    file.write_text(text)
    return migrate_file(file)
