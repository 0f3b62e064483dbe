"""What moves a state: maps, fields, and the maps from states to outputs."""

from dynwarp.models._al_rnn import ALRNN as ALRNN
from dynwarp.models._base import AbstractField as AbstractField
from dynwarp.models._base import AbstractLinearRecurrence as AbstractLinearRecurrence
from dynwarp.models._base import AbstractMap as AbstractMap
from dynwarp.models._base import AbstractPiecewiseLinearModel as AbstractPiecewiseLinearModel
from dynwarp.models._dendritic_plrnn import DendriticPLRNN as DendriticPLRNN
from dynwarp.models._piecewise_linear import PiecewiseLinearMap as PiecewiseLinearMap
from dynwarp.models._plrnn import PLRNN as PLRNN
from dynwarp.models._plrnn import MeanCentredPLRNN as MeanCentredPLRNN
from dynwarp.models._shallow_plrnn import ShallowPLRNN as ShallowPLRNN
