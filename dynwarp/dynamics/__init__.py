"""What any system shows: Jacobians, adjoints, fixed points, periodic orbits, Lyapunov spectra, dimensions."""

from dynwarp.dynamics._adjoint import AdjointRecursion as AdjointRecursion
from dynwarp.dynamics._adjoint import adjoint_recursion as adjoint_recursion
from dynwarp.dynamics._bootstrap import exponent_intervals as exponent_intervals
from dynwarp.dynamics._covariant import CovariantVectors as CovariantVectors
from dynwarp.dynamics._covariant import covariant_lyapunov_vectors as covariant_lyapunov_vectors
from dynwarp.dynamics._dimension import CorrelationDimension as CorrelationDimension
from dynwarp.dynamics._dimension import correlation_dimension as correlation_dimension
from dynwarp.dynamics._dimension import kaplan_yorke_dimension as kaplan_yorke_dimension
from dynwarp.dynamics._fixed_points import FixedPoints as FixedPoints
from dynwarp.dynamics._fixed_points import find_fixed_points as find_fixed_points
from dynwarp.dynamics._jacobian import input_jacobian as input_jacobian
from dynwarp.dynamics._jacobian import jacobian as jacobian
from dynwarp.dynamics._lyapunov import LyapunovSpectrum as LyapunovSpectrum
from dynwarp.dynamics._lyapunov import lyapunov_spectrum as lyapunov_spectrum
from dynwarp.dynamics._mean_field import MeanField as MeanField
from dynwarp.dynamics._mean_field import mean_field_tanh as mean_field_tanh
from dynwarp.dynamics._periodic_orbits import PeriodicOrbits as PeriodicOrbits
from dynwarp.dynamics._periodic_orbits import find_periodic_orbits as find_periodic_orbits
