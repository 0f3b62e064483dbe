"""Linear algebra and segment geometry that every floor may use."""

from dynwarp._linalg._eig import OrderedSchur as OrderedSchur
from dynwarp._linalg._eig import eigenvalues as eigenvalues
from dynwarp._linalg._eig import ordered_schur as ordered_schur
from dynwarp._linalg._ridge import RidgeSolution as RidgeSolution
from dynwarp._linalg._ridge import ridge_regression as ridge_regression
from dynwarp._linalg._segments import SegmentIntersection as SegmentIntersection
from dynwarp._linalg._segments import intersect_segments as intersect_segments
from dynwarp._linalg._segments import point_polyline_distance as point_polyline_distance
from dynwarp._linalg._segments import point_segment_distance as point_segment_distance
from dynwarp._linalg._stein import SteinSolution as SteinSolution
from dynwarp._linalg._stein import solve_stein as solve_stein
