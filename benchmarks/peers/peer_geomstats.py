"""Peer: geomstats, the logarithm of a pullback metric by geodesic shooting. It needs an environment of its own, with
numpy<2 and autograd 1.6.2, under which its autograd backend can be imported."""

import os

os.environ["GEOMSTATS_BACKEND"] = "autograd"
WARM_UP = 120.0

import geomstats  # noqa: E402
import geomstats.backend as gs  # noqa: E402
import numpy as np  # noqa: E402
from geomstats.geometry.base import ImmersedSet  # noqa: E402
from geomstats.geometry.euclidean import Euclidean  # noqa: E402

VERSION = geomstats.__version__


class _Sphere(ImmersedSet):
    """The sphere in polar coordinates."""

    def __init__(self):
        super().__init__(dim=2)

    def immersion(self, point):
        theta, phi = point[..., 0], point[..., 1]
        return gs.stack([gs.sin(theta) * gs.cos(phi), gs.sin(theta) * gs.sin(phi), gs.cos(theta)], axis=-1)

    def _define_embedding_space(self):
        return Euclidean(dim=3)


def sphere_geodesics(size, inputs):
    space = _Sphere()
    starts, ends = gs.array(inputs["starts"]), gs.array(inputs["ends"])

    def call():
        # Its distance is off by about 2e-3, from Euler steps: it is timed, and compared by hand.
        for start, end in zip(starts, ends):
            tangent = space.metric.log(end, start)
            call.distance = float(np.sqrt(space.metric.squared_norm(tangent, start)))

    return call
