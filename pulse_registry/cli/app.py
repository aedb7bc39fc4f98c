"""The application: its commands, and the outermost edge where every error becomes a line and an exit code."""

from __future__ import annotations

import functools
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.main import get_command

from pulse_registry.cli.bases import bases
from pulse_registry.cli.compact import compact
from pulse_registry.cli.countersign import countersign
from pulse_registry.cli.demo import demo
from pulse_registry.cli.doctor import doctor
from pulse_registry.cli.exits import MEANINGS, UNEXPECTED, USAGE, exit_code
from pulse_registry.cli.export import export
from pulse_registry.cli.follow import follow
from pulse_registry.cli.gc import gc
from pulse_registry.cli.import_ import import_
from pulse_registry.cli.inspect import inspect
from pulse_registry.cli.key import key
from pulse_registry.cli.log import log
from pulse_registry.cli.mirror import mirror
from pulse_registry.cli.outer import outer
from pulse_registry.cli.output import print_error
from pulse_registry.cli.promote import promote
from pulse_registry.cli.pull import pull
from pulse_registry.cli.push import push
from pulse_registry.cli.route import route
from pulse_registry.cli.serve import serve
from pulse_registry.cli.stats import stats
from pulse_registry.cli.tag import tag
from pulse_registry.cli.token import token
from pulse_registry.cli.verify import verify
from pulse_registry.cli.warm_up import warm_up
from pulse_registry.cli.workers import workers
from pulse_registry.errors import PulseError
from pulse_registry.process.environment import DEBUG, READ, names, strays
from pulse_registry.quoting import Lines, say

_EXITS = "\n\n".join(f"{code}  {meaning}" for code, meaning in MEANINGS.items())
# The command-line parser's own base class: typer brings it along in some releases and takes it from click in others.
_ParserError = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

app = typer.Typer(
    name="pulse",
    help="A versioned registry of model weights on object storage.",
    epilog=f"Exit codes:\n\n{_EXITS}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    push,
    pull,
    log,
    workers,
    route,
    stats,
    verify,
    inspect,
    demo,
    doctor,
    follow,
    serve,
    compact,
    export,
    gc,
    mirror,
    promote,
    bases,
    tag,
    countersign,
):
    app.command()(command)
app.add_typer(key, name="key")
app.command("warm-up")(warm_up)
app.command("import")(import_)
app.add_typer(token, name="token")
app.add_typer(outer, name="outer")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``pulse`` and return its exit code; ``arguments`` are those of the process if not given."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    logging.lastResort = _Warnings()
    json_output = "--json" in given
    if given[:1] != ["serve"]:  # which knows more names, and tells of them in its log
        _tell_misspelt()
    try:
        code = _command().main(args=given, prog_name="pulse", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except PulseError as error:
        print_error(type(error).__name__, str(error), json_output=json_output)
        return exit_code(error)
    except BrokenPipeError:
        # Whoever read our output has gone: nobody is there to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNEXPECTED
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:  # noqa: BLE001 - the outermost edge: whatever it is, one line and an exit code
        return _refused(error, json_output)


@functools.cache
def _command() -> Any:
    """Return the parser, which takes longer to make than most commands: once, for those who call `main` again."""
    return get_command(app)


class _Warnings(logging.Handler):
    """Prints the library's warnings where nobody has set up logging: lines, as all else is."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(Lines())

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).split("\n"):
            say(line, error=True)


def _tell_misspelt() -> None:
    for name, near in strays(names(), READ).items():
        if near is not None:
            say(f"pulse: {name} in the environment is read by nothing: is it {near}?", error=True)


def _refused(error: Exception, json_output: bool) -> int:
    if isinstance(error, _ParserError):
        message = str(error.format_message())  # type: ignore[attr-defined]
        if message:  # none where no command was given, and the help was printed
            print_error("UsageError", message, json_output=json_output)
        return USAGE
    if DEBUG.read():
        for line in "".join(traceback.format_exception(error)).splitlines():
            say(line, error=True)
    print_error(type(error).__name__, f"unexpected {type(error).__name__}: {error}", json_output=json_output)
    return UNEXPECTED
