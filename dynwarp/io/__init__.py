"""Files: recordings in, models in and out, weights of other libraries in."""

from dynwarp.io._atomic import atomic_write as atomic_write
from dynwarp.io._checkpoint import CheckpointInfo as CheckpointInfo
from dynwarp.io._checkpoint import inspect as inspect
from dynwarp.io._checkpoint import load as load
from dynwarp.io._checkpoint import load_metadata as load_metadata
from dynwarp.io._checkpoint import save as save
from dynwarp.io._delays import choose_delays as choose_delays
from dynwarp.io._embedding import choose_dimension as choose_dimension
from dynwarp.io._embedding import choose_lag as choose_lag
from dynwarp.io._embedding import embed as embed
from dynwarp.io._embedding import false_neighbours as false_neighbours
from dynwarp.io._embedding import mutual_information as mutual_information
from dynwarp.io._gaps import fill_gaps as fill_gaps
from dynwarp.io._import_plrnn import import_plrnn as import_plrnn
from dynwarp.io._import_torch import import_torch as import_torch
from dynwarp.io._registry import register as register
from dynwarp.io._registry import register_function as register_function
from dynwarp.io._series import Series as Series
from dynwarp.io._series import default_series as default_series
from dynwarp.io._series import make_series as make_series
from dynwarp.io._series import read_series as read_series
