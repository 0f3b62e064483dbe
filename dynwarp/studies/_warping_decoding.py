"""The warping study on decoding: the direction and the speed of a reach, from simulated spikes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dynwarp import plot
from dynwarp.geometry import representation_metric
from dynwarp.models import StateReadout
from dynwarp.studies import _warping_networks as networks
from dynwarp.studies._study import Claim, Part, StudyFigure, new_figure
from dynwarp.training import Reconstruction, fit

# Cosines above this are called aligned, speeds above this many times larger faster.
_ALIGNED, _FASTER = 0.5, 1.2


def decoding(config) -> Part:
    """Do faster reaches move the activity faster along its trajectory?"""
    task, decoder, readout = _trained(config)
    loss = networks.mean_loss(decoder, readout, task, task.batch(jax.random.key(config.seed + 1), 500))
    relative = float(loss) / task.chance_level
    grid = task.grid((12, 7))
    found = representation_metric(
        decoder,
        task,
        grid,
        state0=jnp.zeros(decoder.state_size),
        readout=StateReadout(0, decoder.backbone.state_size),
        time_coordinate=True,
        keep="metric",
    )
    # Coordinates: time, direction, speed.
    G = np.asarray(found.G)
    moving = np.flatnonzero(np.any(np.asarray(task.targets(jnp.ones(2))) != 0, axis=1))
    rising = moving[1 : len(moving) // 2]
    times = task.dt * np.arange(1, task.steps + 1)
    # Nothing moves before the first spikes.
    with np.errstate(invalid="ignore"):
        cosine = G[..., 0, 2] / np.sqrt(G[..., 0, 0] * G[..., 2, 2])
    aligned = float(np.median(cosine[..., rising]))
    velocity = np.sqrt(G[..., 0, 0]) / task.dt
    slow, fast = (float(np.median(velocity[:, i][:, rising])) for i in (0, -1))
    peak = int(rising[-1])
    around = np.median(G[:, -1, peak, 1, 1]) / np.median(G[:, 0, peak, 1, 1])
    solved = relative <= 0.25
    both = (aligned >= _ALIGNED, fast >= _FASTER * slow)
    claims = (
        Claim(
            "decoding: a state-space decoder of spikes tells the velocity of simulated reaches",
            "shown on recordings",
            f"loss {relative:.2g} of chance on Poisson counts after {config.decoding_steps} steps",
            "holds" if relative <= 0.1 else "holds in part" if solved else "not reached",
        ),
        Claim(
            "faster movements accelerate the activity along its trajectory",
            "shown on recordings (second-hand)",
            "while the hand speeds up, the cosine between what speed changes in the states and their velocity is "
            f"{aligned:.2f} (median); the states move {fast / slow:.2f} times as fast for the fastest reach as for "
            f"the slowest, of {task.speeds[1] / task.speeds[0]:g} times the speed",
            "not reached" if not solved else "holds" if all(both) else "holds in part" if any(both) else "fails",
        ),
        Claim(
            "faster reaches are told apart better by direction",
            "says nothing",
            f"G of the direction at the peak is {around:.2g} times as large for the fastest reach as for the slowest",
            "not reached" if not solved else "new" if around > 1 else "fails",
        ),
    )
    figure, axes = new_figure(3, width=3.8)
    speeds = np.asarray(grid[0, :, 1])
    plot.timeline(
        times,
        {f"speed {speeds[i]:.2g}": velocity[:, i] for i in (0, 3, 6)},
        epochs={"movement": (float(times[moving[0]]), float(times[moving[-1]]))},
        label="speed of the states",
        ax=axes[0],
    )
    plot.timeline(times[moving], {"cos(d x / d speed, x')": cosine[..., moving]}, label="cos", ax=axes[1])
    for ax in axes[:2]:
        ax.set_xlabel("time (s)")
    plot.tissot(G[:, :, peak, 1:, 1:], np.asarray(grid), power=0.25, ax=axes[2])
    axes[2].set(title="near the peak", xlabel="direction", ylabel="speed")
    drawn = StudyFigure(
        "decoding",
        figure,
        "Decoding of reaches: how fast the states move for three speeds of the hand; the cosine between their "
        "velocity and their derivative by the speed; Tissot's ellipses over direction and speed near the peak.",
        "Three bells, higher for faster reaches; a curve of cosines over the movement; a field of ellipses.",
    )
    values = {
        "relative_loss": relative,
        "cosine": aligned,
        "speeds_of_states": [slow, fast],
        "direction": float(around),
    }
    text = (
        f"{task.n_neurons} simulated neurons with cosine tuning, which differ in rate and depth, in bins of "
        f"{1000 * task.dt:g} ms; a SpikeDecoder, attention over units and a GRU of {config.units} units, trained on "
        "Poisson counts: the parts of POSSM, of which a GRU is one of three backbones. The metric of its states over "
        "the expected counts, on a ring of directions by an interval of speeds. The recordings of the paper were not "
        "to be had."
    )
    return Part("Decoding of reaches", text, claims, values, (drawn,))


@functools.lru_cache(maxsize=4)
def _trained(config):
    """The task, the decoder and its readout, in double precision."""
    task = networks.reaches("poisson")
    of_decoder, of_model, of_trials = jax.random.split(jax.random.key(config.seed), 3)
    decoder = networks.spike_decoder(config, task, of_decoder)
    model = Reconstruction(decoder, task.output_size, readout=decoder.readout(), key=of_model)
    fitted = fit(
        model, task, steps=config.decoding_steps, batch_size=32, clip=1.0, key=of_trials,
        optimizer=optax.adam(optax.cosine_decay_schedule(networks.DECODING_RATE, config.decoding_steps, 0.05)),
    )  # fmt: skip
    return task, *networks.as_double((fitted.last.map, fitted.last.readout))
