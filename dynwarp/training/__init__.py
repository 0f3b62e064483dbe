"""Making a model of a recording: losses, teacher forcing, the training loop."""

from dynwarp.training._fit import fit as fit
from dynwarp.training._fit import fit_seeds as fit_seeds
from dynwarp.training._fit_readout import ReadoutFit as ReadoutFit
from dynwarp.training._fit_readout import fit_readout as fit_readout
from dynwarp.training._fit_readout import readout_features as readout_features
from dynwarp.training._fit_result import FitResult as FitResult
from dynwarp.training._fit_result import History as History
from dynwarp.training._forcing import AbstractForcing as AbstractForcing
from dynwarp.training._forcing import AdaptiveTeacherForcing as AdaptiveTeacherForcing
from dynwarp.training._forcing import GeneralizedTeacherForcing as GeneralizedTeacherForcing
from dynwarp.training._forcing import SparseTeacherForcing as SparseTeacherForcing
from dynwarp.training._invertibility import invertibility_penalty as invertibility_penalty
from dynwarp.training._least_squares import NormalEquations as NormalEquations
from dynwarp.training._least_squares import RecursiveLeastSquares as RecursiveLeastSquares
from dynwarp.training._least_squares import RidgePath as RidgePath
from dynwarp.training._loss import AbstractLoss as AbstractLoss
from dynwarp.training._loss import GaussianLikelihood as GaussianLikelihood
from dynwarp.training._loss import mean_squared_error as mean_squared_error
from dynwarp.training._penalties import AbstractPenalty as AbstractPenalty
from dynwarp.training._penalties import ConditionPenalty as ConditionPenalty
from dynwarp.training._penalties import ManifoldAttractorPenalty as ManifoldAttractorPenalty
from dynwarp.training._penalties import ParameterPenalty as ParameterPenalty
from dynwarp.training._reconstruction import Reconstruction as Reconstruction
from dynwarp.training._score import ReconstructionScore as ReconstructionScore
