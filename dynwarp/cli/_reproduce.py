"""`dynwarp reproduce`: runs the studies there are."""

from __future__ import annotations

import sys
from pathlib import Path

from dynwarp.cli._environment import add_device_option, computing
from dynwarp.errors import ArgumentError


def add_parser(commands):
    """Adds the command."""
    parser = commands.add_parser("reproduce", help="reproduce the studies of the literature")
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="which ones; all if none is named")
    parser.add_argument("--preset", choices=["quick", "paper"], default="quick", help="size of the computation")
    parser.add_argument("--out", type=Path, default=Path("reproduction"), help="folder for what they write")
    add_device_option(parser)
    return parser


def run(arguments) -> int:
    """Runs the named studies, or all."""
    from dynwarp.studies import STUDIES

    known = ", ".join(STUDIES) or "none; this version of dynwarp ships no studies"
    unknown = [name for name in arguments.studies if name not in STUDIES]
    if unknown:
        raise ArgumentError(f"There is no study {', '.join(map(repr, unknown))}. Known studies: {known}.")
    if not STUDIES:
        sys.stdout.write("This version of dynwarp ships no studies, so there is nothing to reproduce.\n")
        return 0
    with computing(arguments.device):
        for name in arguments.studies or STUDIES:
            folder = arguments.out / name
            folder.mkdir(parents=True, exist_ok=True)
            STUDIES[name](arguments.preset, folder)
    return 0
