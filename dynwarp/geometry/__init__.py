"""How computation warps its inputs: the metric of representations, and the Riemannian geometry on top of it."""

from dynwarp.geometry._representation_metric import RepresentationMetric as RepresentationMetric
from dynwarp.geometry._representation_metric import representation_metric as representation_metric
from dynwarp.tasks import InputManifold as InputManifold
