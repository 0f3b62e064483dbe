"""Peer: reservoirpy, a reservoir and a ridge readout in its documented use, with our weights in SciPy's CSR."""

import numpy as np
import reservoirpy
import scipy.sparse
from reservoirpy.nodes import Reservoir, Ridge

VERSION = reservoirpy.__version__


def reservoir_fit(size, inputs):
    W = scipy.sparse.csr_array(inputs["recurrent"])
    x, y = inputs["inputs"], inputs["targets"]

    def call():
        reservoir = Reservoir(W=W, Win=inputs["input_weight"], bias=inputs["bias"], lr=0.5)
        # Its ridge is absolute; ours, 1e-8, is relative to the mean square of the states, which is near 0.2.
        readout = Ridge(ridge=1e-8 * 0.2 * len(x))
        states = reservoir.run(x)
        readout.fit(states[20:], y[20:])
        return np.mean((y[20:] - readout.run(states[20:])) ** 2, axis=0)

    return call
