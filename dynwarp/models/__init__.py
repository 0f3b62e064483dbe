"""What moves a state: maps, fields, and the maps from states to outputs."""

from dynwarp.models._base import AbstractField as AbstractField
from dynwarp.models._base import AbstractLinearRecurrence as AbstractLinearRecurrence
from dynwarp.models._base import AbstractMap as AbstractMap
from dynwarp.models._base import AbstractPiecewiseLinearModel as AbstractPiecewiseLinearModel
from dynwarp.models._piecewise_linear import PiecewiseLinearMap as PiecewiseLinearMap
