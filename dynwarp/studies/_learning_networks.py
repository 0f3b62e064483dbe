"""The learning study on networks: theory against training, alignment, convergence, rank, extensions, noise."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dynwarp import learning, plot
from dynwarp._results import RESULTS
from dynwarp.models import LRU, Elman, LinearRNN, Readout
from dynwarp.studies._learning_modes import _verdict, named_rules
from dynwarp.studies._study import Claim, Part, StudyFigure, new_figure


def theory_and_alignment(config) -> Part:
    """Whether the theory of aligned networks describes networks that start with no alignment at all."""
    seeds, n, T, eta = config.alignment_seeds, 20, 30, config.alignment_rate
    keys = jax.random.split(jax.random.key(config.seed), 2 * seeds)
    target = jnp.array([[1.5, 1.0, 0.8], [0.8, 1.0, 0.3]])

    def networks(key, aligned):
        own, directions, feedback = jax.random.split(key, 3)
        start = jnp.array([[0.05, 0.05, 0.05], [0.05, 0.05, -0.05]])
        made = learning.aligned_networks(
            start, target, jnp.ones(2), inputs=2, units=n, outputs=2, teacher_units=4, key=directions
        )
        random = gaussian_network(own, n, 2, 2, config.small_scale)
        R = jnp.where(aligned, made.feedback, jax.random.normal(feedback, (2, n)) / n**0.5)
        student = jax.tree.map(lambda a, b: jnp.where(aligned, a, b), made.student, random)
        return student, made.teacher, R, made.U, made.V

    aligned = jnp.arange(2 * seeds) < seeds
    students, teachers, R, U, V = eqx.filter_jit(eqx.filter_vmap(networks))(keys, aligned)
    optimizer, segments = optax.sgd(eta), 24
    length = config.alignment_steps // segments
    times = eta * length * np.arange(segments + 1)
    measured = eqx.filter_jit(eqx.filter_vmap(learning.measure_alignment))
    losses, predicted, grown, deviation = {}, {}, {}, {}
    for name in ("BPTT", "RFLO", "e-prop"):
        rules = eqx.filter_vmap(lambda R, name=name: named_rules(R, 0.5)[name])(R)
        run, now, history = None, students, [measured(students, U, V, R)]
        curve = []
        for _ in range(segments):
            run = _train(rules, now, teachers, optimizer, length, length, T)
            now = run.student
            curve.append(run.losses[:, 0])
            history.append(measured(now, U, V, R))
        assert run is not None
        curve.append(run.losses[:, -1])
        losses[name] = np.stack(curve, axis=1)
        predicted[name] = _predicted_losses(name, students, R, U, V, target, times)
        gap = np.abs(losses[name] - predicted[name]) / losses[name][:, :1]
        deviation[name] = {"aligned": float(gap[:seeds].max()), "random": float(np.median(gap[seeds:].max(axis=1)))}
        grown[name] = {
            part: [float(np.median(np.asarray(getattr(h, part))[seeds:])) for h in history]
            for part in ("recurrent", "input", "output", "feedback")
        }
    first = {name: parts["output"][0] for name, parts in grown.items()}
    last = {name: parts["output"][-1] for name, parts in grown.items()}
    claims = (
        Claim(
            "aligned networks learn as their modes do",
            "exact",
            "largest difference of losses relative to the first one: "
            + ", ".join(f"{name} {x['aligned']:.4f}" for name, x in deviation.items())
            + f"; step size {eta}, the error is of its order times the time at the saddle",
            _verdict(max(x["aligned"] for x in deviation.values()) < 0.05),
        ),
        Claim(
            "the theory describes networks trained from small random weights",
            "agreement in figures",
            "median over seeds of the largest difference of losses: "
            + ", ".join(f"{name} {x['random']:.3f}" for name, x in deviation.items()),
            "holds"
            if max(x["random"] for x in deviation.values()) < 0.15
            else "holds in part"
            if min(x["random"] for x in deviation.values()) < 0.15
            else "fails",
        ),
        Claim(
            "training aligns the readout with the teacher's modes",
            "alignment grows",
            "share of the readout on the modes, before and after: "
            + ", ".join(f"{name} {first[name]:.2f} to {last[name]:.2f}" for name in grown),
            "holds" if all(last[name] > first[name] + 0.1 for name in grown) else "fails",
        ),
    )
    figure, (left, right) = new_figure(2)
    shown = {name: np.median(x[seeds:], axis=0) for name, x in losses.items()}
    plot.learning_curves(times, shown, {n: np.median(x[seeds:], axis=0) for n, x in predicted.items()}, ax=left)
    plot.learning_curves(times, {n: np.asarray(p["output"]) for n, p in grown.items()}, ax=right)
    right.set_yscale("linear")
    right.set_ylabel("alignment of the readout")
    drawn = StudyFigure(
        "alignment",
        figure,
        "Networks that start unaligned: losses (solid) against the theory of aligned modes (dashed), and how the "
        "readout aligns; medians over seeds.",
        "Losses of three rules with predictions, and alignment over time.",
    )
    values = {"deviation": deviation, "alignment": grown, "times": times}
    text = (
        f"Two modes, {n} units, sequences of {T} steps, expected updates, {seeds} seeds aligned and {seeds} from "
        f"Gaussian weights of standard deviation {config.small_scale}. The prediction starts from what the first "
        "weights amount to in the teacher's modes, along the hidden directions that grow: those of a fixed feedback, "
        "or with the gradient those of A and B together."
    )
    return Part("Theory against training, and alignment", text, claims, values, (drawn,))


def _predicted_losses(name, students, R, U, V, target, times):
    """The sum of the losses of the modes that the first weights amount to, at the times, a row a network."""

    def modes(student, R, U, V):
        # What grows from small weights: B along a fixed feedback, or with the gradient A and B along their mean.
        driven = R.T @ U if name in ("RFLO", "e-prop") else student.A.T @ U + student.B @ V
        left, _, right = jnp.linalg.svd(driven, full_matrices=False)
        P = left @ right
        a, b = jnp.diagonal(U.T @ student.A @ P), jnp.diagonal(P.T @ student.B @ V)
        return jnp.stack([a, b, jnp.diagonal(P.T @ student.W @ P)], axis=-1), jnp.diagonal(U.T @ R @ P)

    starts, strengths = eqx.filter_jit(eqx.filter_vmap(modes))(students, R, U, V)
    count = starts.shape[0]
    own = jnp.tile(target, (count, 1))
    teacher = learning.Teacher(own[:, 0], own[:, 1], own[:, 2])
    rule = named_rules(strengths.reshape(-1), jnp.full(2 * count, 0.5))[name]
    run = learning.integrate_modes(rule, teacher, starts.reshape(-1, 3), jnp.asarray(times), rtol=1e-6, throw=False)
    columns = learning.Teacher(own[:, :1], own[:, 1:2], own[:, 2:])
    losses = learning.mode_loss(columns, run.values)
    return np.asarray(losses).reshape(count, 2, -1).sum(axis=1)


def convergence(config) -> Part:
    """How many runs converge, and on what that depends."""
    n, T, seeds = 20, config.training_horizon, config.seeds
    sigmas, scales = np.asarray(config.sigmas), np.asarray(config.scales)
    grid = [(i, j, k) for i in range(len(sigmas)) for j in range(len(scales)) for k in range(seeds)]
    cell = np.asarray(grid)

    def networks(seed, sigma, scale):
        own, other, feedback = jax.random.split(jax.random.fold_in(jax.random.key(config.seed), seed), 3)
        R = scale * jax.random.normal(feedback, (1, n)) / n**0.5
        return gaussian_network(own, n, 1, 1, sigma), random_teacher(other), R

    made = eqx.filter_jit(eqx.filter_vmap(networks))
    students, teachers, R = made(
        jnp.asarray(cell[:, 2]), jnp.asarray(sigmas[cell[:, 0]]), jnp.asarray(scales[cell[:, 1]])
    )
    optimizer = optax.sgd(config.training_rate)
    shape, maps, diverged, ranks, profiles, curves = (len(sigmas), len(scales), seeds), {}, {}, {}, {}, {}
    at = (int(np.argmin(abs(sigmas - 0.2))), int(np.argmin(abs(scales - 4.5))))
    profile = eqx.filter_jit(eqx.filter_vmap(learning.rank_profile))
    for name in ("BPTT", "TBPTT(1)", "RFLO", "e-prop"):
        # The gradient knows no feedback: one column of the map is all of it.
        keep = np.flatnonzero(cell[:, 1] == at[1]) if name in ("BPTT", "TBPTT(1)") else np.arange(len(cell))
        chosen = jnp.asarray(keep)
        first, teacher, feedback = jax.tree.map(lambda x, c=chosen: x[c], (students, teachers, R))
        rules = eqx.filter_vmap(lambda R, name=name: named_rules(R, 0.5)[name])(feedback)
        steps = config.training_steps
        run = _train(rules, first, teacher, optimizer, steps, steps // 8, T)
        done = np.asarray(run.losses[:, -1] < 0.1 * run.losses[:, 0])
        lost = np.asarray(run.result == RESULTS.diverged)
        width = 1 if len(keep) < len(cell) else len(scales)
        maps[name] = np.broadcast_to(done.reshape(len(sigmas), width, seeds), shape).sum(axis=2)
        diverged[name] = np.broadcast_to(lost.reshape(len(sigmas), width, seeds), shape).sum(axis=2)
        here = (cell[keep, 0] == at[0]) & (cell[keep, 1] == at[1])
        found = profile(first.W, run.student.W)
        kept = here & done if (here & done).any() else here
        ranks[name] = float(np.median(np.asarray(found.effective_rank)[kept]))
        profiles[name] = np.median(np.asarray(found.singular_values)[kept], axis=0)
        curves[name] = np.median(np.asarray(run.losses)[here], axis=0)
    counts = {name: int(maps[name][at]) for name in maps}
    lost_at = {name: int(diverged[name][at]) for name in maps}
    gentle = {name: int(maps[name][0, 0]) for name in maps}
    published = {"BPTT": 20, "TBPTT(1)": 20, "RFLO": 13, "e-prop": 12}
    share = {name: counts[name] / seeds for name in counts}
    exact_rules_ahead = min(share["BPTT"], share["TBPTT(1)"]) > max(share["RFLO"], share["e-prop"])
    agree = all(_same_share(counts[name], seeds, published[name], 20) for name in counts)
    order = sorted(ranks, key=lambda name: -ranks[name])
    claims = (
        Claim(
            "BPTT and TBPTT(1) converge in all runs, RFLO and e-prop in about half",
            "of 20: " + ", ".join(f"{name} {x}" for name, x in published.items()),
            f"of {seeds} at initial scale {sigmas[at[0]]:g}, feedback scale {scales[at[1]]:g}: "
            + ", ".join(f"{name} {x} ({lost_at[name]} diverged)" for name, x in counts.items())
            + f"; {config.training_steps} steps, converged below a tenth of the first loss; "
            + ("all" if agree else "not all")
            + " within two standard errors of the published shares",
            "holds" if agree and exact_rules_ahead else "holds in part" if exact_rules_ahead else "fails",
        ),
        Claim(
            "the counts are a property of the rule",
            "given for one setting",
            f"no: at initial scale {sigmas[0]:g} and feedback scale {scales[0]:g} "
            + ", ".join(f"{name} {x}" for name, x in gentle.items())
            + f" of {seeds}; failures are divergences and come with strong feedback and large initial weights",
            "fails" if min(gentle["RFLO"], gentle["e-prop"]) / seeds > max(share["RFLO"], share["e-prop"]) else "holds",
        ),
        Claim(
            "the effective rank of what is learnt falls from BPTT over e-prop and TBPTT(1) to RFLO",
            "BPTT > e-prop > TBPTT > RFLO",
            ", ".join(f"{name} {ranks[name]:.3f}" for name in order),
            "holds"
            if order == ["BPTT", "e-prop", "TBPTT(1)", "RFLO"]
            else "holds in part"
            if order[0] == "BPTT" and order[-1] == "RFLO"
            else "fails",
        ),
    )
    figure, axes = new_figure(2)
    for ax, name in zip(axes, ("RFLO", "e-prop")):
        plot.convergence_map(maps[name] / seeds, sigmas, scales, labels=("initial scale", "feedback scale"), ax=ax)
        ax.set_title(name)
    ranked, ax = new_figure()
    plot.singular_values(profiles, ax=ax)
    drawn = (
        StudyFigure(
            "convergence", figure, "Shares of converged runs over initial scale and feedback scale.",
            "Two maps of shares; they fall towards large initial weights and strong feedback.",
        ),
        StudyFigure(
            "singular_values", ranked, "Singular values of the change of W, medians over converged runs; one output.",
            "RFLO has one singular value; e-prop and TBPTT fall fast; BPTT slowly.",
        ),
    )  # fmt: skip
    values = {
        "counts": counts, "diverged": lost_at, "maps": maps, "sigmas": sigmas, "scales": scales,
        "effective_rank": ranks, "losses": curves,
    }  # fmt: skip
    text = (
        f"Expected updates over sequences of {T} steps, {n} units, one input and output, teachers of four modes with "
        f"multipliers in [0.2, 0.8]; Gaussian initial weights; {config.training_steps} steps of size "
        f"{config.training_rate}. The counts published are of 20 seeds; the preset paper has as many, 8000 steps of "
        "size 0.005 and a finer map. Runs that are merely slow count as not converged."
    )
    return Part("Convergence counts and what explains them", text, claims, values, drawn)


def rank(config) -> Part:
    """The rank of what rules learn: bounds, and what breaks them."""
    n, outputs, T = 20, 2, 20
    keys = jax.random.split(jax.random.key(config.seed + 2), 6)
    student = gaussian_network(keys[0], n, 2, outputs, 0.2)
    teacher = random_teacher(keys[1], inputs=2, outputs=outputs)
    R = jax.random.normal(keys[2], (outputs, n)) / n**0.5
    rules, steps = named_rules(R, 0.5), config.rank_steps
    profiles, tails, ranks = {}, {}, {}

    def record(name, before, after):
        profiles[name] = learning.rank_profile(before, after)
        tails[name] = float(profiles[name].tail(outputs))
        ranks[name] = int(profiles[name].rank())

    for name, optimizer in (
        ("RFLO", optax.sgd(0.02)),
        ("RFLO, momentum", optax.sgd(0.005, momentum=0.9)),
        ("RFLO, Adam", optax.adam(1e-3)),
    ):
        run = learning.train_on_expectation(
            rules["RFLO"], student, teacher, steps=steps, optimizer=optimizer, horizon=T, record_every=steps
        )
        record(name, student.W, run.student.W)
    run = learning.train_on_expectation(
        rules["e-prop"], student, teacher, steps=steps, optimizer=optax.sgd(0.02), horizon=T, record_every=steps
    )
    record("e-prop", student.W, run.student.W)
    net, out = Elman(2, n, key=keys[3]), Readout(n, outputs, use_bias=False, key=keys[4])
    run = learning.train_on_samples(
        rules["RFLO"], net, out, learning.WhiteNoiseTask(teacher, T),
        steps=config.sample_steps, optimizer=optax.sgd(0.05), key=keys[5], batch_size=8,
    )  # fmt: skip
    record("RFLO, tanh units", net, run.model)
    tanh_loss = (float(run.losses[:20].mean()), float(run.losses[-20:].mean()))

    spans = {}
    for distinct in (1, 2, 3, 5):
        W = student.W.at[jnp.diag_indices(n)].set(jnp.linspace(-0.6, 0.6, distinct)[jnp.arange(n) % distinct])
        space = learning.column_space(rules["e-prop"], W, student.A, horizon=T)
        frozen = LinearRNN(0.5 * W / jnp.max(jnp.abs(jnp.linalg.eigvals(W))), student.B, student.A)
        update = learning.expected_update(rules["e-prop"], frozen, teacher, horizon=T)
        spans[distinct] = (space.dimension, int(learning.rank_profile(jnp.zeros_like(W), update.dW).rank()))
    holds = tails["RFLO"] < 1e-12 and tails["RFLO, momentum"] < 1e-12
    spanned = all(seen <= bound == outputs * q for q, (bound, seen) in spans.items())
    claims = (
        Claim(
            "RFLO changes W by at most as many directions as there are outputs",
            "rank(W - W_0) <= outputs",
            f"{outputs} outputs: the next singular value is {tails['RFLO']:.0e} of the largest (gradient descent), "
            f"{tails['RFLO, momentum']:.0e} (momentum)",
            "holds" if holds else "fails",
        ),
        Claim(
            "RFLO's bound on the rank holds with Adam",
            "stated for gradient descent",
            f"rank {ranks['RFLO, Adam']} of {n}: an elementwise optimiser leaves the column space",
            "fails" if tails["RFLO, Adam"] > 1e-6 else "holds",
        ),
        Claim(
            "RFLO's bound on the rank holds with tanh units",
            "stated for linear networks",
            f"rank {ranks['RFLO, tanh units']} of {n}, next singular value {tails['RFLO, tanh units']:.0e}; it learns "
            f"all the same, loss {tanh_loss[0]:.3f} to {tanh_loss[1]:.3f}",
            "fails" if tails["RFLO, tanh units"] > 1e-6 else "holds",
        ),
        Claim(
            "e-prop: rank <= outputs times the dimension spanned by the powers of diag(W)",
            "left open",
            "distinct diagonal entries, bound, rank of an update: "
            + ", ".join(f"{q}: {bound}, {seen}" for q, (bound, seen) in spans.items())
            + f"; trained, rank {ranks['e-prop']}, effective rank {float(profiles['e-prop'].effective_rank):.2f}",
            "new" if spanned else "fails",
        ),
    )
    figure, ax = new_figure()
    plot.singular_values(profiles, ax=ax)
    drawn = StudyFigure(
        "rank", figure, f"Singular values of the change of W after {steps} steps; {outputs} outputs.",
        "RFLO drops to rounding after two values, with Adam and tanh units it does not.",
    )  # fmt: skip
    values = {
        "tails": tails,
        "ranks": ranks,
        "eprop_spans": {str(q): x for q, x in spans.items()},
        "tanh_loss": tanh_loss,
    }
    text = "Every update's columns lie in the span of Z^m F; optimisers that multiply by numbers keep to it."
    return Part("Rank of what is learnt", text, claims, values, (drawn,))


def state_space(config) -> Part:
    """The same question for a linear recurrent unit, whose recurrence is diagonal."""
    inputs, modes, outputs, T = 6, 12, 2, 24
    keys = jax.random.split(jax.random.key(config.seed + 3), 6)
    model = LRU(inputs, modes, outputs, r_min=0.4, r_max=0.9, key=keys[0])
    out = Readout(2 * modes, outputs, use_bias=False, key=keys[1])
    x, y = jax.random.normal(keys[2], (T, inputs)), jax.random.normal(keys[3], (T, outputs))
    R, found = jax.random.normal(keys[4], (outputs, 2 * modes)), {}
    for name in ("BPTT", "RFLO"):
        rule = named_rules(R, 0.5)[name]
        _, (gradient, _) = rule.gradients(
            model, out, x, y, state0=jnp.zeros(2 * modes), loss=learning.half_squared_error
        )
        B = jnp.concatenate([gradient.B_real, gradient.B_imag])
        found[name] = int(learning.rank_profile(jnp.zeros_like(B), B).rank())
    teacher = learning.DiagonalNetwork(*_diagonal(keys[5], 4, inputs, outputs))
    student = learning.DiagonalNetwork(*_diagonal(keys[1], modes, inputs, outputs))
    expected = {}
    for name, rule in named_rules(R[:, :modes], 0.5).items():
        update = learning.diagonal_update(rule, student, teacher)
        expected[name] = int(learning.rank_profile(jnp.zeros_like(update.dB), update.dB).rank())
    low = expected["RFLO"] <= outputs and expected["TBPTT(1)"] <= outputs < min(expected["BPTT"], expected["e-prop"])
    claims = (
        Claim(
            "in diagonal state-space models RFLO's constraint moves to the input matrix",
            "remarked for state-space models",
            "rank of an expected update of B, "
            + f"{inputs} inputs, {outputs} outputs: "
            + ", ".join(f"{name} {x}" for name, x in expected.items())
            + "; of an LRU's [Re B; Im B] on one sequence: "
            + ", ".join(f"{name} {x}" for name, x in found.items()),
            "holds" if low else "fails",
        ),
    )
    text = "A diagonal recurrence has no rank to speak of; what a rule can write into B has."
    return Part("State-space models", text, claims, {"expected": expected, "lru": found})


def noise(config) -> Part:
    """What finite steps and minibatches do to RFLO's stability: the limits that the flow leaves open."""
    sequences = config.noise_sequences
    settings = {
        "right sign": (1.0, 0.5, (1.0, 1.0, 0.6), (1.0, 1.0, 0.6)),
        "pocket": (0.045, 0.0, (-2.0, -0.25, 0.9), (0.5, 1.0, 0.9)),
    }
    limits, exact = {}, {}
    for name, (feedback, decay, point, teacher) in settings.items():
        T = 100 if name == "right sign" else 400
        matrices = _sampled_jacobians(feedback, decay, point, teacher, T, sequences, config.seed + 4)
        found = learning.stability(learning.RFLO(feedback, decay), learning.Teacher(*teacher), jnp.array(point[0]))
        e = found.eigenvalues[:2]
        exact[name] = float(jnp.min(-2 * e.real / jnp.abs(e) ** 2))
        limits[name] = {
            "full batch": _largest_step(matrices, np.inf),
            **{f"batch {b}": _largest_step(matrices, b) for b in (1, 16, 256)},
        }
    batch = 16
    outcome = {}
    for factor in (0.5, 2.5):
        outcome[factor] = _noisy_runs(
            settings["right sign"], factor * limits["right sign"][f"batch {batch}"], batch, config
        )
    right, pocket = limits["right sign"], limits["pocket"]
    claims = (
        Claim(
            "finite steps keep what the flow makes stable",
            "the theory is of the flow",
            f"up to eta < 2 / |e| (real) or -2 Re e / |e|^2: {exact['right sign']:.3f} at (1, 1, 0.6), decay 0.5, and "
            f"{exact['pocket']:.3f} in the pocket; from sampled updates {right['full batch']:.3f} and "
            f"{pocket['full batch']:.3f}",
            "new" if abs(right["full batch"] / exact["right sign"] - 1) < 0.15 else "fails",
        ),
        Claim(
            "minibatch noise keeps it too",
            "left open",
            "largest steps that are stable in mean square, at the right sign: "
            + ", ".join(f"{name} {x:.3g}" for name, x in right.items())
            + "; in the pocket: "
            + ", ".join(f"{name} {x:.3g}" for name, x in pocket.items())
            + f". At batch {batch}, half that step returns {outcome[0.5]:.2f} of runs to the optimum, 2.5 times it "
            f"{outcome[2.5]:.2f}. A sequence averages over its own steps, so that one is nearly a full batch",
            "new",
        ),
    )
    text = (
        "At an optimum the error vanishes for every input, so that noise multiplies the distance: an update is "
        "y -> (1 - eta M(x)) y on the two transverse directions, with M(x) the Jacobian of one sequence's update. The "
        f"mean square is stable where the mean of (1 - eta M) (x) (1 - eta M) is a contraction; {sequences} sequences "
        "are drawn."
    )
    return Part(
        "Finite steps and minibatch noise",
        text,
        claims,
        {"largest_steps": limits, "flow": exact, "returned": {str(k): v for k, v in outcome.items()}},
    )


def _sampled_jacobians(feedback, decay, point, teacher, T, sequences, seed):
    """M(x) for many sequences on (d, u), the residuals of a b and w: `(sequences, 2, 2)`."""
    rule = learning.RFLO(jnp.full((1, 1), feedback), decay)
    a, b, w = (jnp.full((1, 1), x) for x in teacher)
    task = learning.WhiteNoiseTask(LinearRNN(w, b, a), T)
    transverse = jnp.array([[point[1], point[0], 0.0], [0.0, 0.0, 1.0]])

    def update(theta, key):
        student = LinearRNN(theta[2].reshape(1, 1), theta[1].reshape(1, 1), theta[0].reshape(1, 1))
        inputs, targets = task(key)
        _, (net, out) = rule.gradients(
            student, student.readout(), inputs, targets, state0=jnp.zeros(1), loss=learning.half_squared_error
        )
        return jnp.stack([out.C[0, 0], net.B[0, 0], net.W[0, 0]])

    jacobians = eqx.filter_jit(jax.vmap(jax.jacfwd(update), in_axes=(None, 0)))
    M = jacobians(jnp.asarray(point), jax.random.split(jax.random.key(seed), sequences))
    return np.asarray(transverse @ M @ jnp.linalg.pinv(transverse))


def _largest_step(matrices, batch):
    """The step size at which the mean square of the distance stops contracting, by bisection."""
    mean = matrices.mean(axis=0)
    second = np.einsum("kij,klm->iljm", matrices, matrices).reshape(4, 4) / len(matrices)
    spread = (second - np.kron(mean, mean)) / batch
    identity = np.eye(2)

    def radius(eta):
        step = identity - eta * mean
        return np.abs(np.linalg.eigvals(np.kron(step, step) + eta**2 * spread)).max()

    low, high = 0.0, 100.0
    tried = np.geomspace(1e-5, high, 400)
    bad = np.flatnonzero([radius(eta) >= 1 for eta in tried])
    if bad.size == 0:
        return high
    high = tried[bad[0]]
    low = tried[bad[0] - 1] if bad[0] else 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if radius(middle) >= 1 else (middle, high)
    return float(low)


def _noisy_runs(setting, eta, batch, config):
    """The share of runs of minibatch learning that end at an optimum, from a start beside it."""
    feedback, decay, point, teacher = setting
    rule = learning.RFLO(jnp.full((1, 1), feedback), decay)
    a, b, w = (jnp.full((1, 1), x) for x in teacher)
    task = learning.WhiteNoiseTask(LinearRNN(w, b, a), 40)
    student = LinearRNN(
        jnp.full((1, 1), point[2] - 0.02), jnp.full((1, 1), point[1]), jnp.full((1, 1), point[0] + 0.02)
    )

    def one(key):
        run = learning.train_on_samples(
            rule, student, student.readout(), task,
            steps=config.noise_steps, optimizer=optax.sgd(eta), key=key, batch_size=batch,
        )  # fmt: skip
        return run.losses[-1]

    last = jax.vmap(one)(jax.random.split(jax.random.key(config.seed + 5), 16))
    return float(jnp.mean(last < 1e-8))


def gaussian_network(key, n, inputs, outputs, scale) -> LinearRNN:
    """A network of Gaussian weights of one standard deviation."""
    of_w, of_b, of_a = jax.random.split(key, 3)
    draw = jax.random.normal
    return LinearRNN(scale * draw(of_w, (n, n)), scale * draw(of_b, (n, inputs)), scale * draw(of_a, (outputs, n)))


def random_teacher(key, *, modes=4, inputs=1, outputs=1) -> LinearRNN:
    """A teacher with multipliers in [0.2, 0.8]."""
    of_w, of_b, of_a = jax.random.split(key, 3)
    W = jnp.diag(jax.random.uniform(of_w, (modes,), minval=0.2, maxval=0.8))
    return LinearRNN(W, jax.random.normal(of_b, (modes, inputs)), jax.random.normal(of_a, (outputs, modes)) / 2)


def _diagonal(key, modes, inputs, outputs):
    of_w, of_b, of_a = jax.random.split(key, 3)
    poles = jax.random.uniform(of_w, (modes,), minval=-0.8, maxval=0.8)
    return poles, jax.random.normal(of_b, (modes, inputs)), jax.random.normal(of_a, (outputs, modes))


@eqx.filter_jit
def _train(rules, students, teachers, optimizer, steps, record_every, horizon):
    def one(rule, student, teacher):
        return learning.train_on_expectation(
            rule, student, teacher, steps=steps, optimizer=optimizer, horizon=horizon, record_every=record_every
        )

    return eqx.filter_vmap(one)(rules, students, teachers)


def _same_share(ours: int, of_ours: int, theirs: int, of_theirs: int) -> bool:
    """Whether two shares differ by less than two standard errors of a difference of shares."""
    pooled = (ours + theirs) / (of_ours + of_theirs)
    error = np.sqrt(pooled * (1 - pooled) * (1 / of_ours + 1 / of_theirs))
    return bool(abs(ours / of_ours - theirs / of_theirs) <= 2 * error)
