"""Peers in this process and in an environment of their own."""

import os
import sys
import time

import numpy as np
import pytest

from dynwarp.bench._peers import PeerPool, PeerSkipped
from dynwarp.errors import ArgumentError

PEER = """
import numpy as np
VERSION = "1.2"

def double(size, inputs):
    print("a peer may print")
    return lambda: size["factor"] * inputs["x"]

def unfit(size, inputs):
    raise NotImplementedError("too large")

def broken(size, inputs):
    def call():
        raise ValueError("no result")
    return call

def chatty(size, inputs):
    import os
    def call():
        os.system("echo from another process")
        return np.ones(1)
    return call

def sleeps(size, inputs):
    import time
    return lambda: time.sleep(60)

def dies(size, inputs):
    import os
    return lambda: os._exit(3)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "peer_good.py").write_text(PEER)
    (tmp_path / "peer_absent.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "peer_slow.py").write_text("WARM_UP = 100.0  # seconds\nraise RuntimeError('imported')\n")
    return tmp_path


@pytest.fixture(params=["here", "apart"])
def pool(folder, request):
    names = ("good", "absent", "slow") if request.param == "apart" else ()
    with PeerPool(directory=folder, pythons=dict.fromkeys(names, sys.executable)) as pool:
        yield pool


def test_peer_gives_results_and_times(pool):
    peer = pool.open("good", "double", {"factor": 2}, {"x": np.arange(3.0)})
    try:
        result, seconds = peer.first()
        np.testing.assert_array_equal(result[0], [0.0, 2.0, 4.0])
        assert seconds > 0
        assert min(peer.time(3)) >= 0
        assert peer.version == "1.2"
    finally:
        peer.close()


def test_missing_package_is_one_line(pool):
    with pytest.raises(PeerSkipped, match="No module named 'a_package_that_is_not_there'") as error:
        pool.open("absent", "double", {}, {})
    assert "\n" not in str(error.value)


def test_unfit_size_is_skipped(pool):
    with pytest.raises(PeerSkipped, match=r"^too large$"):
        pool.open("good", "unfit", {}, {})


def test_slow_peer_waits_for_the_full_suite(pool):
    with pytest.raises(PeerSkipped, match="warm-up takes about 100 s"):
        pool.open("slow", "double", {}, {})


def test_other_reasons_to_skip(folder):
    with pytest.raises(PeerSkipped, match=r"no peer_other\.py"):
        PeerPool(directory=folder).open("other", "double", {}, {})
    with pytest.raises(PeerSkipped, match="source checkout"):
        PeerPool(directory=None).open("good", "double", {}, {})
    with pytest.raises(PeerSkipped, match="cannot start"):
        PeerPool(directory=folder, pythons={"good": str(folder / "python")}).open("good", "double", {}, {})


def test_failing_peer_raises_its_own_error(folder):
    with PeerPool(directory=folder, pythons={"good": sys.executable}) as apart:
        peer = apart.open("good", "broken", {}, {})
        with pytest.raises(RuntimeError, match="ValueError: no result"):
            peer.first()
        peer.close()
        with pytest.raises(RuntimeError, match="has no attribute 'nothing'"):
            apart.open("good", "nothing", {}, {})


def test_one_process_serves_all_cases_and_a_dead_one_is_replaced(folder):
    with PeerPool(directory=folder, pythons={"good": sys.executable}) as pool:
        peer = pool.open("good", "double", {"factor": 2}, {"x": np.ones(1)})
        process = pool._processes["good"]
        peer.close()
        again = pool.open("good", "double", {"factor": 3}, {"x": np.ones(1)})
        assert again.first()[0] == [3.0]
        assert pool._processes["good"] is process
        doomed = pool.open("good", "dies", {}, {})
        with pytest.raises(RuntimeError, match="the process of this peer ended"):
            doomed.first()
        assert not process.alive
        fresh = pool.open("good", "double", {"factor": 4}, {"x": np.ones(1)})
        assert fresh.first()[0] == [4.0]
        last = pool._processes["good"]
    assert not last.alive


def test_silent_peer_is_given_up(folder):
    with PeerPool(directory=folder, pythons={"good": sys.executable}, patience=0.0) as pool:
        with pytest.raises(RuntimeError, match="gave no answer in 0 s"):
            pool.open("good", "double", {}, {})
        with pytest.raises(PeerSkipped, match="gave no answer earlier"):
            pool.open("good", "double", {}, {})


def test_what_a_peer_writes_to_the_terminal_is_no_answer(folder):
    with PeerPool(directory=folder, pythons={"good": sys.executable}) as pool:
        peer = pool.open("good", "chatty", {}, {})
        assert peer.first()[0] == [1.0]


def test_a_program_that_is_no_peer(folder):
    pool = PeerPool(directory=folder, pythons={"good": "echo"})
    with pytest.raises(RuntimeError, match=r"answered '.*_peer_host\.py'"):
        pool.open("good", "double", {}, {})


def test_no_process_is_left_behind(folder):
    """Not even the Python that a script has started, which does not look up from its work."""
    script = folder / "python.sh"
    script.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\n')
    script.chmod(0o755)
    pool = PeerPool(directory=folder, pythons={"good": str(script)}, patience=60.0)
    peer = pool.open("good", "sleeps", {}, {})
    process = pool._processes["good"]
    process._patience = 0.0
    with pytest.raises(RuntimeError, match="gave no answer"):
        peer.first()
    for _ in range(200):  # until the system has cleared it away
        try:
            os.killpg(process._child.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("a process is left")


def test_mistaken_names_are_told_at_once(folder):
    with pytest.raises(ArgumentError, match="there is no peer 'god'"):
        PeerPool(directory=folder, pythons={"god": sys.executable})
    with pytest.raises(ArgumentError, match="does not exist"):
        PeerPool(directory=folder / "nowhere")
