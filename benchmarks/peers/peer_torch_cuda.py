"""Peer: PyTorch on a CUDA device."""

import importlib.util
import pathlib

import torch

if not torch.cuda.is_available():
    raise ImportError("this torch sees no CUDA device")

_spec = importlib.util.spec_from_file_location(
    "dynwarp_peer_torch_on_cuda", pathlib.Path(__file__).with_name("peer_torch.py")
)
_torch = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_torch)
_torch.DEVICE = "cuda"

VERSION = torch.__version__
alrnn_training_step = _torch.alrnn_training_step
elman_gradient = _torch.elman_gradient
gru_gradient = _torch.gru_gradient
jacobians = _torch.jacobians
simulate_alrnn = _torch.simulate_alrnn
simulate_lru = _torch.simulate_lru
