"""Every notebook runs from top to bottom in its fast mode, as plain Python."""

import pathlib
import re

import matplotlib.pyplot as plt
import pytest

import dynwarp

FOLDER = pathlib.Path(dynwarp.__file__).parents[1] / "notebooks"
SOURCES = sorted(FOLDER.glob("*.py"))


@pytest.mark.skipif(not SOURCES, reason="the notebooks are not beside the installed package")
@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_notebook_runs(path, monkeypatch, tmp_path):
    monkeypatch.setenv("DYNWARP_FAST", "1")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": path.stem}
    for cell in re.split(r"^# %%", path.read_text(), flags=re.M)[1:]:
        if not cell.startswith(" [markdown]"):
            exec(compile(cell.partition("\n")[2], path.name, "exec"), names)
    plt.close("all")


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_executed_notebook_is_of_this_source(path):
    """The executed notebook beside each source has its code, and no cell failed."""
    import json

    notebook = json.loads(path.with_suffix(".ipynb").read_text())
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    source = [
        cell.partition("\n")[2].strip()
        for cell in re.split(r"^# %%", path.read_text(), flags=re.M)[1:]
        if not cell.startswith(" [markdown]")
    ]
    assert [c.strip() for c in code] == source
    kinds = {out["output_type"] for cell in notebook["cells"] for out in cell.get("outputs", [])}
    assert "error" not in kinds
    assert "display_data" in kinds
