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
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="[PART=]FILE",
        help="a recording for a study that takes one: manifolds has the parts neuron (the default) and "
        "electrocardiogram; may be given more than once",
    )
    add_device_option(parser)
    return parser


def run(arguments) -> int:
    """Runs the named studies, or all."""
    from dynwarp.studies import RECORDINGS, STUDIES

    known = ", ".join(STUDIES) or "none; this version of dynwarp ships no studies"
    unknown = [name for name in arguments.studies if name not in STUDIES]
    if unknown:
        raise ArgumentError(f"There is no study {', '.join(map(repr, unknown))}. Known studies: {known}.")
    if not STUDIES:
        sys.stdout.write("This version of dynwarp ships no studies, so there is nothing to reproduce.\n")
        return 0
    chosen = arguments.studies or list(STUDIES)
    files = _files(arguments.data, [part for name in chosen for part in RECORDINGS.get(name, ())])
    with computing(arguments.device):
        for name in chosen:
            folder = arguments.out / name
            folder.mkdir(parents=True, exist_ok=True)
            own = {part: file for part, file in files.items() if part in RECORDINGS.get(name, ())}
            STUDIES[name](arguments.preset, folder, **({"data": own} if own else {}))
    return 0


def _files(given: list[str], parts: list[str]) -> dict[str, str]:
    """The recordings of `--data`, by the part of a study that they are for."""
    files = {}
    for text in given:
        part, _, file = text.rpartition("=")
        if not parts:
            raise ArgumentError("`--data` is for a study that takes a recording; none of those named does.")
        part = part or parts[0]
        if part not in parts:
            raise ArgumentError(f"`--data` {text!r}: there is no part {part!r}. Known parts: {', '.join(parts)}.")
        if not Path(file).is_file():
            raise ArgumentError(f"`--data` {file!r} does not exist.")
        files[part] = file
    return files
