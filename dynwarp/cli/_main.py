"""The parser, and the one place where an error becomes a line and an exit code. Nothing here imports JAX."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dynwarp._version import __version__
from dynwarp.cli import _analyze, _bench, _fit, _info, _reproduce
from dynwarp.errors import DynwarpError

_COMMANDS = (_fit, _analyze, _reproduce, _bench, _info)
UNEXPECTED, FAILED, INTERRUPTED = 1, 2, 130


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="dynwarp",
        description="Differentiable dynamics of recurrent networks: train a model on a recording and analyze it.",
    )
    parser.add_argument("--version", action="version", version=f"dynwarp {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        subparser = command.add_parser(commands)
        subparser.add_argument("--debug", action="store_true", help="show the full traceback of an error")
        subparser.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    **Arguments:** `argv`, the words after `dynwarp`; those of the process if None.

    **Returns:** the exit code: 0; 2 for an error, which is one line on standard error; 1 for one that dynwarp did not
    foresee; 130 after Ctrl-C. `--help` and a wrong option exit by `SystemExit`, as argparse does.

    **Example:**

    >>> from dynwarp.cli import main
    >>> main(["reproduce", "no-such-study"])
    2
    """
    arguments = make_parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except KeyboardInterrupt:
        _complain("interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left, as `head` does.
        sys.stderr.close()
        return FAILED
    except DynwarpError as error:
        if arguments.debug:
            raise
        _complain(str(error))
        return FAILED
    except (OSError, MemoryError) as error:
        if arguments.debug:
            raise
        _complain(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        return FAILED
    except Exception as error:
        if arguments.debug:
            raise
        what = f"unexpected {type(error).__name__}: {str(error).rstrip('.')}"
        _complain(f"{what}. This is a fault of dynwarp; --debug shows where it is.")
        return UNEXPECTED


def _complain(message: str) -> None:
    print("dynwarp: " + " ".join(message.split()), file=sys.stderr)  # noqa: T201
