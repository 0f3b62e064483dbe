"""Exact analysis of piecewise-linear maps: regions, cycles, manifolds, basins, homoclinic points."""

from dynwarp.piecewise._cycle import Cycle as Cycle
from dynwarp.piecewise._cycle import Cycles as Cycles
from dynwarp.piecewise._cycle import cycle_at as cycle_at
