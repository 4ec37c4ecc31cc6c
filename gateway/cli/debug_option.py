"""Define the option --debug of the commands that serve: which components log in detail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from gateway.telemetry.logs import COMPONENTS


def _validate_components(names: Sequence[str] | None) -> Sequence[str] | None:
    """Return the values of the option.

    Raises:
        typer.BadParameter: One of them is not in `COMPONENTS`.
    """
    for name in names or ():
        if name not in COMPONENTS:
            from gateway.config.source.expression import find_closest

            closest = find_closest(name.removeprefix("gateway."), COMPONENTS)
            hint = f"did you mean '{closest}'?" if closest else f"use {', '.join(COMPONENTS)}"
            raise typer.BadParameter(f"unknown component '{name}'; {hint}")
    return names


def _complete_component(incomplete: str) -> list[str]:
    """Return the components whose names begin with a text."""
    return [name for name in COMPONENTS if name.startswith(incomplete)]


DebugOption = Annotated[
    list[str] | None,
    typer.Option(
        "--debug",
        metavar="COMPONENT",
        callback=_validate_components,
        autocompletion=_complete_component,
        help=f"Log in detail what a component does; repeatable. One of {', '.join(COMPONENTS)}.",
    ),
]
