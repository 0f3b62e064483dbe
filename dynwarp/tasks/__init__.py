"""What a network is asked to do, and over which inputs."""

from dynwarp.tasks._adding import Adding as Adding
from dynwarp.tasks._binning import bin_signal as bin_signal
from dynwarp.tasks._binning import bin_spikes as bin_spikes
from dynwarp.tasks._centre_out import CentreOut as CentreOut
from dynwarp.tasks._combine import FunctionManifold as FunctionManifold
from dynwarp.tasks._combine import Product as Product
from dynwarp.tasks._combine import Section as Section
from dynwarp.tasks._contextual_integration import ContextualIntegration as ContextualIntegration
from dynwarp.tasks._copy import Copy as Copy
from dynwarp.tasks._flip_flop import FlipFlop as FlipFlop
from dynwarp.tasks._input_manifold import InputManifold as InputManifold
from dynwarp.tasks._memory_subtraction import MemorySubtraction as MemorySubtraction
from dynwarp.tasks._random_permutation import RandomPermutation as RandomPermutation
from dynwarp.tasks._recorded_trials import RecordedTrials as RecordedTrials
from dynwarp.tasks._recorded_trials import reach_variables as reach_variables
from dynwarp.tasks._sequential_memory import SequentialMemory as SequentialMemory
from dynwarp.tasks._shapes import Circle as Circle
from dynwarp.tasks._shapes import Line as Line
from dynwarp.tasks._shapes import Torus as Torus
from dynwarp.tasks._sine_generator import SineGenerator as SineGenerator
from dynwarp.tasks._spline import SplineManifold as SplineManifold
from dynwarp.tasks._task import AbstractTask as AbstractTask
from dynwarp.tasks._task import TaskBatch as TaskBatch
from dynwarp.tasks._temporal_order import TemporalOrder as TemporalOrder
from dynwarp.tasks._working_memory import WorkingMemory as WorkingMemory
