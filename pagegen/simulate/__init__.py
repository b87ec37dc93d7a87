"""CUDA kernels on a CPU: emitted source compiled by the system's C++ compiler with a simulator.

Blocks, warps, shared memory, asynchronous copies and matrix products behave as on a GPU, in an
order that a seed chooses, and what a GPU would not allow is reported. It knows no kernel: a launch
is source text, a grid and arguments.
"""

from pagegen.simulate.launch import Figures, Simulator, simulate
from pagegen.simulate.library import host_compiler
from pagegen.simulate.tensor_map import TensorMap

__all__ = ["Figures", "Simulator", "TensorMap", "host_compiler", "simulate"]
