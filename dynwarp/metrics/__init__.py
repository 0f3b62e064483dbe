"""How near a generated trajectory is to an observed one."""

from dynwarp.metrics._power_spectrum import power_spectrum as power_spectrum
from dynwarp.metrics._power_spectrum import power_spectrum_distance as power_spectrum_distance
from dynwarp.metrics._prediction_error import persistence_error as persistence_error
from dynwarp.metrics._prediction_error import prediction_error as prediction_error
from dynwarp.metrics._reference import chance_level as chance_level
from dynwarp.metrics._reference import split_half as split_half
from dynwarp.metrics._state_space_divergence import state_space_divergence as state_space_divergence
