"""Linear algebra and segment geometry that every floor may use."""

from dynwarp._linalg._stein import SteinSolution as SteinSolution
from dynwarp._linalg._stein import solve_stein as solve_stein
