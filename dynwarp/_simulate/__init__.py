"""Stepping through time: one verb for maps, linear recurrences and fields."""

from dynwarp._simulate._simulate import simulate as simulate
