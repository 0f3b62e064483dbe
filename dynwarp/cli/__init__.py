"""The command line: `dynwarp fit`, `analyze`, `reproduce`, `bench`, `info`."""

from dynwarp.cli._main import main as main
