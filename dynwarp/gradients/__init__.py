"""How gradients travel through time: profiles, products of Jacobians, bounds, and what a signal makes of a mode."""

from dynwarp.gradients._backpropagate import Backpropagation as Backpropagation
from dynwarp.gradients._backpropagate import backpropagate as backpropagate
from dynwarp.gradients._bounds import BoundReport as BoundReport
from dynwarp.gradients._bounds import InputSensitivity as InputSensitivity
from dynwarp.gradients._bounds import bound_report as bound_report
from dynwarp.gradients._bounds import input_sensitivity as input_sensitivity
from dynwarp.gradients._capacity import InformationCapacity as InformationCapacity
from dynwarp.gradients._capacity import MemoryCapacity as MemoryCapacity
from dynwarp.gradients._capacity import information_processing_capacity as information_processing_capacity
from dynwarp.gradients._capacity import memory_capacity as memory_capacity
from dynwarp.gradients._conditioning import ConditioningReport as ConditioningReport
from dynwarp.gradients._conditioning import conditioning_report as conditioning_report
from dynwarp.gradients._echo_state import EchoStateReport as EchoStateReport
from dynwarp.gradients._echo_state import echo_state_report as echo_state_report
from dynwarp.gradients._jacobian_product import JacobianProduct as JacobianProduct
from dynwarp.gradients._jacobian_product import jacobian_product as jacobian_product
from dynwarp.gradients._parametrisation import eigenvalue_from_parameters as eigenvalue_from_parameters
from dynwarp.gradients._parametrisation import parameter_sensitivity as parameter_sensitivity
from dynwarp.gradients._parametrisation import parameters_from_eigenvalue as parameters_from_eigenvalue
from dynwarp.gradients._profile import GradientProfile as GradientProfile
from dynwarp.gradients._profile import gradient_profile as gradient_profile
from dynwarp.gradients._signal import hessian_kernel as hessian_kernel
from dynwarp.gradients._signal import signal_moments as signal_moments
