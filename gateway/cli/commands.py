"""What all commands have in common: how they end.

Exit codes: 0 done, 1 failure, 2 wrong usage, 78 a wrong configuration (EX_CONFIG of
sysexits.h), 130 ended by ^C.
"""

from __future__ import annotations

import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from gateway.errors import ConfigError, GatewayError

EXIT_FAILURE, EXIT_CONFIG_ERROR, EXIT_INTERRUPTED = 1, 78, 130


class ErrorReportingGroup(TyperGroup):
    """What any command raises becomes a line on stderr and an exit code, here only."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except GatewayError as exc:
            if ctx.params["debug"]:
                traceback.print_exc()
            wrong_config = isinstance(exc, ConfigError)
            typer.echo(str(exc) if wrong_config else f"gateway: {exc}", err=True)
            raise typer.Exit(EXIT_CONFIG_ERROR if wrong_config else EXIT_FAILURE) from None
