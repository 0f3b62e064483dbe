"""Looking at it: matplotlib figures, `ax=` in, artists out. Needs the extra `plot`."""

from dynwarp.plot._dynamics import eigenvalues as eigenvalues
from dynwarp.plot._dynamics import fixed_points as fixed_points
from dynwarp.plot._dynamics import lyapunov_spectrum as lyapunov_spectrum
from dynwarp.plot._series import power_spectrum as power_spectrum
from dynwarp.plot._series import prediction_error as prediction_error
from dynwarp.plot._series import series as series
from dynwarp.plot._series import training_history as training_history
