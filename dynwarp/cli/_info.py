"""`dynwarp info`: what this installation is and what it runs on."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from dynwarp.cli._environment import add_device_option, cache_directory, computing

_PACKAGES = ["jax", "jaxlib", "equinox", "diffrax", "optimistix", "lineax", "optax", "numpy", "scipy"]
_OPTIONAL = {"matplotlib": "plot", "plotly": "plot", "h5py": "io", "safetensors": "io", "PyWavelets": "io"}


def add_parser(commands):
    """Adds the command."""
    parser = commands.add_parser("info", help="backend, devices, versions, precision, cache")
    add_device_option(parser)
    return parser


def run(arguments) -> int:
    """Prints the table."""
    with computing(arguments.device) as device:
        import jax
        from rich.console import Console
        from rich.table import Table

        from dynwarp._version import __version__

        devices = jax.devices(device.platform)
        kinds = ", ".join(sorted({f"{d.platform} ({d.device_kind})" for d in devices}))
        gpu = "" if device.platform != "cpu" else "; no GPU in use" if arguments.device == "cpu" else "; no GPU found"
        cache = cache_directory()
        rows = [
            ("dynwarp", __version__),
            ("python", f"{platform.python_version()} on {platform.platform()}"),
            ("backend", f"{device.platform}{gpu}"),
            ("devices", f"{len(devices)}: {kinds}"),
            ("precision", "float64 for analysis (the commands switch it on); training in float32 unless --float64"),
            ("matmul", str(jax.config.jax_default_matmul_precision or "default")),
            ("compile cache", f"{cache}{'' if cache.exists() else ' (not there yet)'}"),
        ]
        rows += [(name, _version(name) or "missing") for name in _PACKAGES]
        rows += [
            (name, _version(name) or f"not installed: pip install 'dynwarp[{extra}]'")
            for name, extra in _OPTIONAL.items()
        ]
        table = Table(show_header=False, box=None, pad_edge=False)
        for name, value in rows:
            table.add_row(name, value)
        Console(file=sys.stdout, soft_wrap=True, highlight=False, markup=False).print(table)
    return 0


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
