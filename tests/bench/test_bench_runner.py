"""The runner on cases made for it: what is recorded, and what happens when something goes wrong."""

import contextlib
import errno
import itertools
import json
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.bench import Kernel, _case, _measure, _runner, _timing, gate, run_bench, validate
from dynwarp.bench._case import Case, select
from dynwarp.bench._ceilings import measure_ceilings
from dynwarp.bench._environment import describe
from dynwarp.bench._measure import compile_program, relative_error
from dynwarp.bench._timing import count_collectives, count_compiles, interleave, ratio, summary
from dynwarp.errors import ArgumentError, DeviceError


@jax.jit
def _product(x):
    return x @ x


def _make(*, n=3, seed, function=_product, tolerance=1e-12, **options):
    x = jax.random.normal(jax.random.key(seed), (n, n))
    return Kernel(
        function=function,
        arguments=(x,),
        reference=lambda: np.asarray(x) @ np.asarray(x),
        tolerance=tolerance,
        flops=2 * n**3,
        bytes=2 * n * n * 8,
        **options,
    )


@pytest.fixture
def register(monkeypatch):
    """Replaces the registry by toy cases."""
    select("check")
    monkeypatch.setattr("dynwarp.bench._case.CASES", {})

    def add(name, make=_make, sizes=({"n": 3},), peers=()):
        every = dict.fromkeys(("check", "quick", "full", "gpu"), tuple(sizes))
        case = Case(name=name, group="toy", summary="", make=make, sizes=every, peers=peers)
        _case.CASES[name] = case
        return case

    return add


@pytest.fixture
def quick(monkeypatch):
    """Suites that measure as little as a check does."""
    monkeypatch.setattr(_runner, "_SETTINGS", dict.fromkeys(_runner._SETTINGS, _runner._SETTINGS["check"]))


def test_record_is_whole_and_survives_json(register, tmp_path):
    register(
        "product",
        lambda **size: _make(**size, variants={"twice": (lambda x: 2 * (x @ x) / 2, _make(seed=0).arguments)}),
    )
    lines = []
    document = run_bench(suite="check", out=tmp_path, echo=lines.append)
    assert gate(document) == []
    stored = json.loads((tmp_path / "check-cpu.json").read_text())
    assert validate(stored) == []
    assert stored == document
    (record,) = stored["results"]
    phases = record["phases"]
    assert min(phases[name] for name in ("trace", "lower", "compile", "first")) > 0
    assert phases["steady"]["minimum"] <= phases["steady"]["median"]
    assert phases["steady"]["iqr"] == pytest.approx(
        phases["steady"]["upper_quartile"] - phases["steady"]["lower_quartile"]
    )
    assert (record["collectives"], record["callbacks"], record["recompiles"]) == (0, 0, 0)
    assert record["memory"]["arguments"] == record["memory"]["outputs"] == 3 * 3 * 8
    assert record["peak_memory"] >= 2 * 3 * 3 * 8
    assert record["flops"] == 54
    assert record["roofline"]["bound"] in ("compute", "memory")
    assert record["digest"]["passed"]
    assert record["peers"]["twice"]["kind"] == "variant"
    assert record["peers"]["twice"]["ratio"]["low"] <= record["peers"]["twice"]["ratio"]["high"]
    assert "twice x" in lines[0]
    assert document["environment"]["x64"]
    assert document["environment"]["platform"] == "cpu"


def test_a_peer_that_does_less_is_compared_per_unit(register, tmp_path, monkeypatch):
    (tmp_path / "peer_toy.py").write_text("def product(size, inputs):\n    return lambda: None\n")
    monkeypatch.setattr("dynwarp.bench._measure.ratio", lambda peer, own: {"median": 2.0, "low": 1.0, "high": 3.0})
    register("product", lambda **size: _make(**size, work=100.0, peer_work=4.0), peers=("toy",))
    (record,) = run_bench(suite="check", peers=tmp_path)["results"]
    assert record["peers"]["toy"]["work"] == 4.0
    assert record["peers"]["toy"]["ratio"] == {"median": 50.0, "low": 25.0, "high": 75.0}


def absent(*platform):
    # What JAX does where JAX_PLATFORMS names what is not there.
    raise AssertionError


def test_an_accelerator_is_set_beside_the_processor(register, quick, monkeypatch, tmp_path):
    """The processor under another name: what is reported of an accelerator, and that none waits for the processor."""

    def make(*, batch, dtype, seed):
        x = jax.random.normal(jax.random.key(seed), (batch, 3, 3), dtype)
        return Kernel(
            function=_product, arguments=(x,), reference=lambda: np.matmul(x, x), tolerance=1e-5, flops=9.0, work=batch
        )

    register("product", make, sizes=[{"batch": batch, "dtype": "float32"} for batch in (2, 4)])
    environment = describe(jax.devices("cpu")[0]) | {"platform": "gpu", "cores": 16}
    device = types.SimpleNamespace(platform="gpu", device_kind="A card")
    monkeypatch.setattr(jax, "default_device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(_runner, "describe", lambda device: environment)
    monkeypatch.setattr(_runner, "measure_ceilings", lambda device, small: measure_ceilings(device, small=True))
    monkeypatch.setattr(_runner, "_device", lambda name: device)
    monkeypatch.setattr(_measure, "_LONGEST_ON_CPU", 0.0)
    document = run_bench(suite="gpu", out=tmp_path)
    assert gate(document) == []
    first, second = document["results"]
    assert {name: peer["kind"] for name, peer in first["peers"].items()} == {
        "highest_precision": "precision",
        "cpu": "device",
    }
    assert (first["digest"]["precision"], first["peers"]["cpu"]["status"]) == ("highest", "ok")
    assert second["peers"]["cpu"]["reason"].startswith("by the size before it would take about")
    _runner.write_report(tmp_path, echo=lambda line: None)
    report = (tmp_path / "report.md").read_text()
    assert "(at the highest precision float32 " in report
    assert "| product | dtype=float32 | " in report.partition("Where the accelerator wins")[2]
    assert " | 16 | x" in report

    monkeypatch.setattr(jax, "devices", absent)
    (record, _) = run_bench(suite="gpu")["results"]
    assert record["peers"]["cpu"]["reason"] == "JAX_PLATFORMS leaves it out"


def test_wrong_result_fails_the_gate(register):
    register("wrong", lambda **size: _make(**size, function=lambda x: x @ x + 1e-3))
    (problem,) = gate(run_bench(suite="check"))
    assert "wrong (n=3): relative error" in problem


def test_nan_fails_the_gate_and_stays_json(register, tmp_path):
    register("nan", lambda **size: _make(**size, function=lambda x: jnp.nan * (x @ x)))
    document = run_bench(suite="check", out=tmp_path)
    assert document["results"][0]["digest"]["relative_error"] is None
    assert len(gate(document)) == 1


def test_fresh_closure_fails_the_gate(register):
    # The defect that the second call is there for: a kernel that is compiled anew on every call.
    register("closure", lambda **size: _make(**size, function=lambda x: jax.jit(lambda y: y @ y)(x)))
    (problem,) = gate(run_bench(suite="check"))
    assert "compiled again for fresh values" in problem


def test_compilations_that_go_unheard_fail_the_gate(register, monkeypatch):
    # A JAX that calls its events by other names must not make the gate one that nothing fails.
    register("fine")
    monkeypatch.setattr(jax.monitoring, "register_event_duration_secs_listener", lambda listener: None)
    monkeypatch.setattr(jax.monitoring, "unregister_event_duration_listener", lambda listener: None)
    (problem,) = gate(run_bench(suite="check"))
    assert "does not tell when it compiles" in problem


def test_callback_fails_the_gate(register):
    def call_back(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda y: np.asarray(y) @ np.asarray(y), shape, x)

    register("callback", lambda **size: _make(**size, function=call_back))
    assert any("host callbacks" in problem for problem in gate(run_bench(suite="check")))


def test_failing_case_is_recorded_and_the_rest_goes_on(register):
    def broken(*, n, seed):
        raise RuntimeError("a reason\nin two lines")

    register("broken", broken)
    register("fine")
    document = run_bench(suite="check")
    assert [record["status"] for record in document["results"]] == ["failed", "ok"]
    assert document["results"][0]["reason"] == "RuntimeError: a reason in two lines"
    assert validate(document) == []
    assert len(gate(document)) == 1


def test_interrupt_keeps_what_is_done(register, tmp_path):
    def interrupted(*, n, seed):
        raise KeyboardInterrupt

    register("fine")
    register("interrupted", interrupted)
    register("never")
    lines = []
    document = run_bench(suite="check", out=tmp_path, echo=lines.append)
    stored = json.loads((tmp_path / "check-cpu.json").read_text())
    assert document["status"] == stored["status"] == "interrupted"
    assert [record["case"] for record in stored["results"]] == ["fine"]
    assert lines[-1] == "Interrupted: 1 of 3 results are kept."
    assert gate(document) == ["the run is interrupted"]
    del document["results"][0]["phases"]
    assert gate(document) == ["results[0].phases is missing"]


def test_budget_skips_the_rest_and_says_so(register, quick):
    register("first")
    document = run_bench(suite="quick", budget=0.0)
    assert document["results"][0]["reason"] == "the budget of 0 s was used up"


def test_full_disk_stops_before_the_work(register, tmp_path, monkeypatch):
    calls = []
    register("case", lambda **size: calls.append(size) or _make(**size))

    def full(path, mode):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(_runner, "atomic_write", full)
    with pytest.raises(OSError, match="No space left"):
        run_bench(suite="check", out=tmp_path)
    assert not calls


def test_host_function_has_no_compile_phases(register):
    register("host", lambda **size: _make(**size, function=lambda x: np.asarray(x) @ np.asarray(x), compiled=False))
    document = run_bench(suite="check")
    assert gate(document) == []
    (record,) = document["results"]
    assert record["phases"]["compile"] is None
    assert record["peak_memory"] is None


def test_unknown_names_and_devices(register, monkeypatch):
    register("product")
    with pytest.raises(ArgumentError, match="no case 'prodct'; there are product"):
        run_bench(names=["prodct"])
    with pytest.raises(ArgumentError, match="`suite` must be one of"):
        run_bench(suite="fast")
    with pytest.raises(DeviceError, match="has no tpu; it has cpu"):
        run_bench(device="tpu")
    with pytest.raises(DeviceError, match="has no gpu; it has cpu"):
        run_bench(suite="gpu")
    with monkeypatch.context() as patch:
        patch.setattr(jax, "devices", absent)
        with pytest.raises(DeviceError, match="does not find the platform in JAX_PLATFORMS"):
            run_bench()
    register("gpu_only", sizes=())
    with pytest.raises(ArgumentError, match="none of gpu_only has a size"):
        run_bench(names=["gpu_only"])


def test_program_takes_modules_and_counts_memory():
    model = dw.models.PiecewiseLinearMap(jnp.eye(2), jnp.ones((2, 1)), jnp.ones((1, 2)), jnp.zeros(2), jnp.zeros(1))
    program = compile_program(lambda model, x: model(x), (model, jnp.ones(2)))
    assert eqx.tree_equal(program.call(), jnp.array([3.0, 3.0]))
    assert program.memory is not None
    assert program.memory["peak"] >= (4 + 2 + 2 + 2 + 1 + 2 + 2) * 8


def test_collectives_are_counted():
    # What two devices would compile to; only names of operations count, not names of values.
    hlo = """
      %all-reduce.1 = f64[2]{0} all-reduce(f64[2]{0} %x), to_apply=%add
      %g = (f64[2], f64[4]) all-gather-start(f64[2] %all-reduce.1), dimensions={0}
      %d = f64[4] all-gather-done((f64[2], f64[4]) %g)
      ROOT %p = f64[2] collective-permute(f64[2] %x), source_target_pairs={{0,1}}
    """
    assert count_collectives(hlo) == 3


def test_compiles_are_counted():
    f = jax.jit(lambda x: jnp.sin(x) + 7)
    x = jnp.ones(5)
    with count_compiles() as counts:
        f(x)
        f(x + 0)
    assert counts["compiled"] == 2  # f, and the addition
    with count_compiles() as counts:
        f(x)
    assert counts["compiled"] == 0


def test_interleaving_takes_turns_and_drops_the_slow_and_the_broken():
    order = []

    def timer(name, seconds=0.0, fail=False):
        def run():
            order.append(name)
            if fail and order.count(name) > 1:
                raise RuntimeError
            return seconds, seconds

        return run

    timers = {"dynwarp": timer("dynwarp", 1.0), "peer": timer("peer", 2.0), "broken": timer("broken", fail=True)}
    samples = interleave(timers, repetitions=4, seconds=0.0, limit=10.0)
    assert order[:6] == ["dynwarp", "peer", "broken", "broken", "peer", "dynwarp"]
    assert "broken" not in order[6:]
    assert samples["broken"] == []
    assert len(samples["dynwarp"]) == len(samples["peer"]) == 4
    assert ratio(samples["peer"], samples["dynwarp"]) == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert summary(samples["peer"])["median"] == 2.0
    # What takes all of the time in one round is not asked for a second one.
    slow = interleave({"dynwarp": timer("dynwarp"), "peer": timer("peer")}, repetitions=3, seconds=0.0, limit=0.0)
    assert [len(slow[name]) for name in ("dynwarp", "peer")] == [2, 1]
    # With no time left each runs twice.
    assert len(interleave({"dynwarp": timer("dynwarp")}, repetitions=9, seconds=9.0, limit=0.0)["dynwarp"]) == 2


def test_rounds_change_their_order_and_ratios_keep_their_rounds(monkeypatch):
    order, clock = [], [0.0]
    monkeypatch.setattr(_timing, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))

    def timer(name, factor, wait=0.0):
        def run():
            order.append(name)
            clock[0] += wait
            return factor * 2.0 ** order.count(name), 0.0  # the machine slows down

        return run

    samples = interleave(
        {"dynwarp": timer("dynwarp", 1.0), "a": timer("a", 3.0), "b": timer("b", 5.0)},
        repetitions=6,
        seconds=0.0,
        limit=10.0,
    )
    rounds = [order[i : i + 3] for i in range(0, 18, 3)]
    assert len({tuple(each) for each in rounds}) == 6
    neighbours = [pair for each in rounds for pair in itertools.pairwise(each)]
    assert set(map(neighbours.count, neighbours)) == {2}
    assert ratio(samples["b"], samples["dynwarp"]) == {"median": 5.0, "low": 5.0, "high": 5.0}

    # One that leaves in the middle is set against the rounds that it was part of.
    order.clear()
    timers = {"dynwarp": timer("dynwarp", 1.0), "slow": timer("slow", 3.0, wait=0.0625), "b": timer("b", 5.0)}
    samples = interleave(timers, repetitions=8, seconds=0.0, limit=0.3)
    assert [len(samples[name]) for name in timers] == [8, 2, 8]
    assert ratio(samples["slow"], samples["dynwarp"]) == {"median": 3.0, "low": 3.0, "high": 3.0}
    assert ratio(samples["b"], samples["dynwarp"]) == {"median": 5.0, "low": 5.0, "high": 5.0}

    # An error of the first passes through, wherever in a round it stands.
    def broken():
        if order.count("a") > 1:
            raise ValueError("own")
        return 1.0, 1.0

    order.clear()
    with pytest.raises(ValueError, match="own"):
        interleave({"dynwarp": broken, "a": timer("a", 1.0)}, repetitions=4, seconds=0.0, limit=10.0)
    assert order == ["a", "a"]


def test_relative_error():
    assert relative_error(np.array([1.0, 2.2]), np.array([1.0, 2.0])) == pytest.approx(0.1)
    assert relative_error((np.zeros(2), np.ones(1)), (np.zeros(2), np.ones(1))) == 0.0
    assert relative_error(np.ones(2), np.ones(3)) == float("inf")
    assert relative_error(np.array([np.nan]), np.ones(1)) == float("inf")
    assert relative_error(np.array([1 + 1j]), np.array([1.0 + 0j])) == pytest.approx(1.0)
