"""Exact analysis of piecewise-linear maps: regions, cycles, fixed points by region, manifolds and their quality."""

from dynwarp.piecewise._cycle import Cycle as Cycle
from dynwarp.piecewise._cycle import Cycles as Cycles
from dynwarp.piecewise._cycle import cycle_at as cycle_at
from dynwarp.piecewise._find_cycles import find_cycles as find_cycles
from dynwarp.piecewise._fixed_points import RegionFixedPoints as RegionFixedPoints
from dynwarp.piecewise._fixed_points import fixed_points_by_region as fixed_points_by_region
from dynwarp.piecewise._homeomorphism import Homeomorphism as Homeomorphism
from dynwarp.piecewise._homeomorphism import is_homeomorphism as is_homeomorphism
from dynwarp.piecewise._inverse import Preimages as Preimages
from dynwarp.piecewise._inverse import preimages as preimages
from dynwarp.piecewise._local import Piece as Piece
from dynwarp.piecewise._manifold import Manifold as Manifold
from dynwarp.piecewise._quality import delta_sigma as delta_sigma
from dynwarp.piecewise._quality import invariance_residual as invariance_residual
from dynwarp.piecewise._quality import manifold_quality as manifold_quality
from dynwarp.piecewise._regions import Regions as Regions
from dynwarp.piecewise._regions import enumerate_regions as enumerate_regions
from dynwarp.piecewise._retrace import retrace as retrace
from dynwarp.piecewise._trace import trace_manifold as trace_manifold
