"""Making a model of a recording: losses, teacher forcing, the training loop."""

from dynwarp.training._fit import FitResult as FitResult
from dynwarp.training._fit import History as History
from dynwarp.training._fit import fit as fit
from dynwarp.training._fit import mean_squared_error as mean_squared_error
from dynwarp.training._forcing import AbstractForcing as AbstractForcing
from dynwarp.training._forcing import GeneralizedTeacherForcing as GeneralizedTeacherForcing
from dynwarp.training._forcing import SparseTeacherForcing as SparseTeacherForcing
from dynwarp.training._invertibility import invertibility_penalty as invertibility_penalty
from dynwarp.training._reconstruction import Reconstruction as Reconstruction
from dynwarp.training._score import ReconstructionScore as ReconstructionScore
