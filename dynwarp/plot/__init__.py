"""Looking at it: matplotlib figures, `ax=` in, artists out. Needs the extra `plot`."""

from dynwarp.plot._dynamics import eigenvalues as eigenvalues
from dynwarp.plot._dynamics import fixed_points as fixed_points
from dynwarp.plot._dynamics import lyapunov_spectrum as lyapunov_spectrum
from dynwarp.plot._gradients import envelopes as envelopes
from dynwarp.plot._gradients import gradient_bounds as gradient_bounds
from dynwarp.plot._gradients import gradient_profile as gradient_profile
from dynwarp.plot._gradients import memory_capacities as memory_capacities
from dynwarp.plot._gradients import sensitivities as sensitivities
from dynwarp.plot._learning import convergence_map as convergence_map
from dynwarp.plot._learning import convergence_rates as convergence_rates
from dynwarp.plot._learning import learning_curves as learning_curves
from dynwarp.plot._learning import mode_paths as mode_paths
from dynwarp.plot._learning import singular_values as singular_values
from dynwarp.plot._learning import stability_map as stability_map
from dynwarp.plot._manifolds import basins as basins
from dynwarp.plot._manifolds import bifurcation_diagram as bifurcation_diagram
from dynwarp.plot._manifolds import cycles as cycles
from dynwarp.plot._manifolds import manifold as manifold
from dynwarp.plot._manifolds import manifold_slice as manifold_slice
from dynwarp.plot._manifolds import slice_segments as slice_segments
from dynwarp.plot._manifolds import state_space as state_space
from dynwarp.plot._projection import projection as projection
from dynwarp.plot._series import power_spectrum as power_spectrum
from dynwarp.plot._series import prediction_error as prediction_error
from dynwarp.plot._series import series as series
from dynwarp.plot._series import training_history as training_history
