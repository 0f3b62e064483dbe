"""Seeds side by side: each as a training of its own, failures that stay alone, restarts, early stopping, resuming."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynwarp as dw
from dynwarp import training
from dynwarp._results import RESULTS
from dynwarp.errors import ArgumentError, ConvergenceError

KEYS = jax.random.split(jax.random.key(3), 3)
CIRCLE = np.stack([np.cos(0.3 * np.arange(80.0)), np.sin(0.3 * np.arange(80.0))], axis=1)
OPTIMIZER = optax.adam(1e-3)


def make(key):
    return dw.models.ALRNN(3, 1, key=key)


def seeds(**options):
    defaults = {"steps": 12, "keys": KEYS, "sequence_length": 6, "batch_size": 4, "validate_every": 4}
    return training.fit_seeds(make, CIRCLE, **(defaults | {"optimizer": OPTIMIZER} | options))


def identical(a, b):
    leaves = (jax.tree.leaves(eqx.filter(tree, eqx.is_array)) for tree in (a, b))
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(*leaves, strict=True))


@pytest.fixture(scope="module")
def fitted():
    return seeds(validation=CIRCLE[:30], noise=0.05)


def test_each_seed_is_a_training_of_its_own(fitted):
    assert fitted.seeds == 3
    assert fitted.history.loss.shape == (3, 12)
    assert fitted.history.validation.shape == (3, 3)
    assert fitted.model.W.shape == (3, 3, 3)
    first, second = jax.random.split(KEYS[1])
    alone = training.fit(
        make(first), CIRCLE, key=second, steps=12, sequence_length=6, batch_size=4, validate_every=4,
        optimizer=OPTIMIZER, validation=CIRCLE[:30], noise=0.05,
    )  # fmt: skip
    one = fitted.seed(1)
    # Twelve steps on a rotation: rounding has no time to grow.
    np.testing.assert_allclose(one.history.loss, alone.history.loss, rtol=1e-10)
    np.testing.assert_allclose(one.history.validation, alone.history.validation, rtol=1e-10)
    for x, y in zip(*(jax.tree.leaves(eqx.filter(r.reconstruction, eqx.is_array)) for r in (one, alone)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)
    assert one.stats["best_step"] == alone.stats["best_step"]
    assert one.seeds is None
    assert one.result == RESULTS.successful
    assert one.reconstruction.generate(jnp.ones(2), 4).shape == (4, 2)
    assert fitted.best_seed() == np.argmin(fitted.history.validation.min(axis=1))


def fragile():
    """An optimizer that sends a seed to infinity if its first bias starts at 7."""

    def update(updates, state, parameters=None):
        return jax.tree.map(lambda u: jnp.where(state, jnp.inf, -1e-3 * u), updates), state

    return optax.GradientTransformation(lambda parameters: parameters.map.h[0] == 7.0, update)


FRAGILE = fragile()


def make_marked(*marked):
    """Models of which those of these numbers are marked for the optimizer above."""
    numbers = iter(range(len(KEYS)))

    def make_one(key):
        bad = next(numbers) in marked
        return eqx.tree_at(lambda m: m.h, make(key), replace_fn=lambda h: h.at[0].set(7.0 if bad else 0.0))

    return make_one


def marked_seeds(*marked, **options):
    settings = {"steps": 24, "keys": KEYS, "sequence_length": 6, "batch_size": 4, "optimizer": FRAGILE}
    return training.fit_seeds(make_marked(*marked), CIRCLE, **(settings | options))


def test_a_seed_that_fails_leaves_the_others_alone():
    one_fails, none_fails = marked_seeds(1), marked_seeds()
    assert np.asarray(one_fails.result == RESULTS.successful).tolist() == [True, False, True]
    assert one_fails.stats["skipped"].tolist() == [0, 24, 0]
    assert one_fails.stats["steps"] == 24
    assert one_fails.seed(1).model.h.tolist() == [7.0, 0.0, 0.0]
    assert one_fails.best_seed() != 1
    for lane in (0, 2):
        assert np.isfinite(one_fails.history.loss[lane]).all()
        assert identical(one_fails.seed(lane).last, none_fails.seed(lane).last)
    all_fail = marked_seeds(0, 1, 2, throw=False)
    assert not np.asarray(all_fail.result == RESULTS.successful).any()
    with pytest.raises(ConvergenceError, match="3 of 3 lanes"):
        marked_seeds(0, 1, 2)


def test_a_failed_seed_restarts_with_a_smaller_step():
    """Steps of size 1e150 make the next loss overflow; 1e-152 times that is an honest step."""
    again = seeds(steps=60, optimizer=optax.sgd(1e150), clip=1.0, restart=1e-152)
    assert np.asarray(again.result == RESULTS.successful).all()
    assert again.stats["restarts"].tolist() == [1, 1, 1]
    # One step that was finite, twenty that were not, and then the rest of the training.
    assert again.stats["skipped"].tolist() == [20, 20, 20]
    assert np.isfinite(again.history.loss[:, 21:]).all()
    assert (again.history.loss[:, -1] < again.history.loss[:, 0]).all()
    with pytest.raises(ArgumentError, match="`restart`"):
        seeds(restart=2.0)


def test_the_training_stops_where_no_seed_gets_better():
    falling = {"validation": lambda model: jnp.sum(model.map.A) * 0 + 1.0, "patience": 2, "steps": 40}
    stopped = seeds(**falling)
    # The first validation is the best; two more without a better one end it.
    assert stopped.stats["steps"] == 12
    assert stopped.stats["best_step"].tolist() == [4, 4, 4]
    with pytest.raises(ArgumentError, match="`patience`"):
        seeds(patience=2)


def test_interrupted_seeds_resume_bit_for_bit(tmp_path):
    options = {"validation": CIRCLE[:30], "restart": 0.5, "forcing": training.AdaptiveTeacherForcing()}
    whole = seeds(**options)

    def interrupt(step, steps, figures):
        assert figures["seeds alive"] == 3
        if step >= 5:
            raise KeyboardInterrupt

    first = seeds(directory=tmp_path, progress=interrupt, **options)
    assert first.stats["interrupted"]
    assert first.stats["steps"] < 12
    second = seeds(directory=tmp_path, resume=True, **options)
    assert identical(
        (whole.reconstruction, whole.last, whole.forcing), (second.reconstruction, second.last, second.forcing)
    )
    np.testing.assert_array_equal(second.history.loss, whole.history.loss)
    np.testing.assert_array_equal(second.history.validation, whole.history.validation)
    with pytest.raises(ArgumentError, match="another `seeds`"):
        seeds(directory=tmp_path, resume=True, **(options | {"keys": KEYS[:2]}))
    with pytest.raises(ArgumentError, match="another `loss`"):
        seeds(directory=tmp_path, resume=True, loss=training.GaussianLikelihood(), **options)


def test_messages():
    with pytest.raises(ArgumentError, match="one key"):
        seeds(keys=[])
    sizes = iter([3, 4, 3])
    with pytest.raises(ArgumentError, match="one structure"):
        training.fit_seeds(
            lambda key: dw.models.ALRNN(next(sizes), 1, key=key), CIRCLE, keys=KEYS, steps=1, sequence_length=5
        )
    one = training.fit(
        make(KEYS[0]), CIRCLE, key=KEYS[1], steps=1, sequence_length=6, optimizer=OPTIMIZER, batch_size=4
    )
    with pytest.raises(ArgumentError, match="no seed 0"):
        one.seed(0)
    with pytest.raises(ArgumentError, match="one training"):
        one.best_seed()
