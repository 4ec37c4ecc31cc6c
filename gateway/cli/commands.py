"""Define how commands end: the exit codes, and what becomes of an exception.

Exit codes: 0 success, 1 failure, 2 wrong usage (click's), 78 wrong configuration (EX_CONFIG of
sysexits.h), 130 interrupted by ^C (128 and the number of SIGINT).
"""

from __future__ import annotations

import errno
import logging
import os
import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from gateway.errors import ConfigError, GatewayError
from gateway.extras import describe_missing_module
from gateway.telemetry.logs import format_output

EXIT_FAILURE, EXIT_CONFIG_ERROR, EXIT_INTERRUPTED = 1, 78, 130

_UsageError: Any = typer.BadParameter.__base__  # typer's own click or, before 0.20, click's
_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def format_exit_codes(failure: str = "failure", *, reads_config: bool = True) -> str:
    """Return the last line of a command's help; `failure` is the meaning of exit code 1."""
    config = ", 78 wrong configuration" if reads_config else ""
    return f"Exit codes: 0 success, 1 {failure}, 2 wrong usage{config}, 130 interrupted by ^C."


class ErrorReportingGroup(TyperGroup):
    """The group of all commands: the one place where an exception becomes an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except GatewayError as exc:
            if ctx.params["debug"]:
                _print_error(traceback.format_exc())
            is_config_error = isinstance(exc, ConfigError)
            _print_error(str(exc) if is_config_error else f"gateway: {exc}")
            raise typer.Exit(EXIT_CONFIG_ERROR if is_config_error else EXIT_FAILURE) from None
        except _UsageError as exc:
            # An unknown option that is like no other may be meant for an argument.
            if exc.ctx is not None and getattr(exc, "possibilities", None) == []:
                arguments = [p for p in exc.ctx.command.params if p.param_type_name == "argument"]
                names = " and ".join(p.metavar or str(p.name).upper() for p in arguments)
                exc.message += f"; write {names} without an option" if names else ""
            raise
        except typer.Abort as exc:
            # A prompt has ended by ^C or by the end of the input; it raises the same for both.
            if isinstance(exc.__context__, KeyboardInterrupt):
                typer.echo(err=True)  # ends the line of the prompt
                raise typer.Exit(EXIT_INTERRUPTED) from None
            if not isinstance(exc.__context__, EOFError):
                raise
            _print_error("gateway: the input ended before an answer")
            raise typer.Exit(EXIT_FAILURE) from None
        except (OSError, ModuleNotFoundError) as exc:
            # A command imports what it needs when it runs; some of it is in an extra.
            problem = (
                _describe_file_error(exc)
                if isinstance(exc, OSError)
                else describe_missing_module(exc.name or "", ctx.invoked_subcommand)
            )
            if problem is None or ctx.params["debug"]:
                raise
            _print_error(f"gateway: {problem}")
            raise typer.Exit(EXIT_FAILURE) from None


def _print_error(text: str) -> None:
    """Print an error to stderr; as JSON objects if the command's log is JSON."""
    typer.echo(format_output(text.rstrip("\n"), logging.ERROR), err=True)


def _describe_file_error(error: OSError) -> str | None:
    if error.filename is not None:
        return f"cannot use {os.fsdecode(error.filename)}: {error.strerror}; check the path"
    if error.errno in _FULL_ERRORS:
        return f"cannot write: {error.strerror}; make room, or write elsewhere"
    return None
