"""`dynwarp bench`: measures the kernels, or checks that they are right."""

from __future__ import annotations

from dynwarp.bench import add_arguments
from dynwarp.bench import run as run


def add_parser(commands):
    """Adds the command."""
    parser = commands.add_parser(
        "bench",
        help="measure the kernels of the package",
        description="Measures kernels beside their peers: compile and run apart, memory, correctness. "
        "--check only verifies them.",
    )
    add_arguments(parser)
    return parser
