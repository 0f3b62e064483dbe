"""`dynwarp bench --check`, case by case: right, of the schema, one compile a kernel, no collectives; never seconds."""

import pytest

from dynwarp.bench import CASES, gate, run_bench
from dynwarp.bench._case import select

NAMES = sorted({case.name for case, _ in select("check")})


@pytest.mark.parametrize("name", NAMES)
def test_case_holds(name):
    document = run_bench(suite="check", names=[name])
    assert gate(document) == []
    (record,) = document["results"]
    # Peers that are here solve the same problem; those that are not are skipped.
    for peer in record["peers"].values():
        assert peer["status"] in ("ok", "skipped"), peer
        assert peer.get("agrees", True), peer


def test_every_case_has_a_smallest_and_a_quick_size():
    for name in NAMES:
        sizes = CASES[name].sizes
        assert len(sizes["check"]) == 1
        assert sizes["quick"]
        assert sizes["full"][: len(sizes["quick"])] == sizes["quick"]
        keys = set(sizes["check"][0])
        assert all(set(size) == keys for suite in sizes.values() for size in suite), name
