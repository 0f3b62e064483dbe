"""Named systems, with the parameters of the literature: flows are fields, the others are maps.

Each has `initial_state()`, a state to start from, and each flow a `time_step` that suits a fixed-step scan.
"""

from dynwarp.systems._border_collision import BorderCollisionMap as BorderCollisionMap
from dynwarp.systems._decision import Decision as Decision
from dynwarp.systems._lorenz import Lorenz63 as Lorenz63
from dynwarp.systems._lorenz import Lorenz96 as Lorenz96
from dynwarp.systems._maps import Henon as Henon
from dynwarp.systems._maps import LogisticMap as LogisticMap
from dynwarp.systems._maps import Lozi as Lozi
from dynwarp.systems._neurons import BurstingNeuron as BurstingNeuron
from dynwarp.systems._neurons import ConductanceNeuron as ConductanceNeuron
from dynwarp.systems._neurons import FitzHughNagumo as FitzHughNagumo
from dynwarp.systems._oscillators import DampedOscillators as DampedOscillators
from dynwarp.systems._oscillators import Duffing as Duffing
from dynwarp.systems._rossler import Rossler as Rossler
