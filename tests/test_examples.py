"""Every docstring example and every Python block of the README runs."""

import doctest
import importlib
import pathlib
import pkgutil
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import dynwarp

README = pathlib.Path(dynwarp.__file__).parents[1] / "README.md"
NAMES = {"dw": dynwarp, "jax": jax, "jnp": jnp, "eqx": eqx}


def _modules():
    for info in pkgutil.walk_packages(dynwarp.__path__, "dynwarp."):
        if not info.name.startswith("dynwarp.cli") and not info.name.endswith("__main__"):
            yield info.name


@pytest.mark.parametrize("name", list(_modules()))
def test_docstring_examples(name):
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in finder.find(module, name, module=module, extraglobs=dict(NAMES)):
        runner.run(test)
    assert runner.failures == 0, f"{runner.failures} examples of {name} failed; the output above says which"


@pytest.mark.skipif(not README.exists(), reason="README.md is not beside the installed package")
def test_readme_blocks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.M | re.S)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
