"""How computation warps its inputs: the metric of representations, and the Riemannian geometry on top of it."""

from dynwarp.geometry._curvature_history import CurvatureHistory as CurvatureHistory
from dynwarp.geometry._curvature_history import curvature_history as curvature_history
from dynwarp.geometry._geodesics import Geodesic as Geodesic
from dynwarp.geometry._immersion import Immersion as Immersion
from dynwarp.geometry._interpolant import Interpolant as Interpolant
from dynwarp.geometry._metric import Metric as Metric
from dynwarp.geometry._metric_penalty import MetricPenalty as MetricPenalty
from dynwarp.geometry._representation_metric import RepresentationMetric as RepresentationMetric
from dynwarp.geometry._representation_metric import representation_metric as representation_metric
from dynwarp.geometry._state_manifold import state_manifold as state_manifold
from dynwarp.geometry._warping import Warping as Warping
from dynwarp.geometry._warping import warping as warping
from dynwarp.tasks import InputManifold as InputManifold
