"""The command ``globular``: parse, run, and turn every foreseeable failure into one line and an exit code.

Exit codes: 0 success; 2 wrong input or options, with one line on standard error; 130 Ctrl-C.
Set ``GLOBULAR_TRACEBACK=1`` to see the traceback behind an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer import Option

from globular._version import __version__
from globular.cli.codes import decode, encode
from globular.cli.demo import demo
from globular.cli.export import coreset, export, report
from globular.cli.fit import fit
from globular.cli.info import info
from globular.cli.predict import predict
from globular.cli.select import select
from globular.cli.shared import EXIT_INTERRUPTED, FAILED, as_options, messages_as_lines, say
from globular.errors import GlobularError

app = typer.Typer(name="globular", epilog="New here? Run: globular demo", rich_markup_mode="rich")
for command in (fit, select, predict, encode, decode, info, report, export, coreset, demo):
    app.command()(command)

# Typer carries its own copy of click in some versions and imports the package in others: ask it for the class.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"globular {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Cluster data into thousands to millions of clusters."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command with the given arguments (default: ``sys.argv``) and return its exit code."""
    command = _without_types(typer.main.get_command(app))
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with messages_as_lines():
            code = command.main(args=given or ["--help"], prog_name="globular", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except BrokenPipeError:  # who reads the output has had enough; Python would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (_ClickError, GlobularError, ValueError, TypeError, OSError, MemoryError) as error:
        if os.environ.get("GLOBULAR_TRACEBACK"):
            raise
        say(f"error: {_one_line(error)}")
        return FAILED
    if code == EXIT_INTERRUPTED:
        say("interrupted")
    return int(code or 0)


def _without_types(command: Any) -> Any:
    """The command with help that shows NAME instead of Python types for values of options."""
    for each in (command, *command.commands.values()):
        for parameter in each.get_params(typer.Context(each)):
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda ctx: None
            elif parameter.metavar is None:
                parameter.metavar = "" if parameter.is_flag else "NAME"
    return command


def _one_line(error: BaseException) -> str:
    """Message of an error without line breaks, or its class name if it has no message."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    usage = getattr(error, "ctx", None)
    if usage is not None:  # an option or argument that click does not like
        message = f"{message}{'' if message.endswith(('.', '?')) else '.'} See: {usage.command_path} --help"
    return as_options(" ".join(message.split())) or type(error).__name__


def main() -> None:
    """Entry point of the command."""
    sys.exit(run())


if __name__ == "__main__":
    main()
