"""The command line: `dynwarp fit`, `analyze`, `reproduce`, `info`."""

from dynwarp.cli._main import main as main
