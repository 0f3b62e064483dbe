"""What a network is asked to do, and over which inputs."""

from dynwarp.tasks._input_manifold import InputManifold as InputManifold
