"""How gradients travel through time: profiles, products of Jacobians, bounds, and what a signal makes of a mode."""

from dynwarp.gradients._signal import hessian_kernel as hessian_kernel
from dynwarp.gradients._signal import signal_moments as signal_moments
