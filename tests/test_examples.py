"""Every docstring example and every Python block of the README and the documentation runs."""

import doctest
import importlib
import pathlib
import pkgutil
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
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
    plt.close("all")
    assert runner.failures == 0, f"{runner.failures} examples of {name} failed; the output above says which"


PAGES = [README, *sorted((README.parent / "docs" / "pages").glob("*.md"))]


@pytest.mark.skipif(not README.exists(), reason="README.md is not beside the installed package")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.M | re.S)
    if page == README:
        assert blocks
    names: dict = {}
    # As a reader runs them: without the strict promotion of the tests.
    with jax.numpy_dtype_promotion("standard"):
        for block in blocks:
            exec(compile(block, page.name, "exec"), names)
    plt.close("all")
