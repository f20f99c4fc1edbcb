"""Tally from Python. Its C is the reference; what differs here:

  Calls      tl_f(t, x, ...) is t.f(x, ...), x.f(...) and tally.f(x, ...); options are keywords.
             Layers find the model on the tape: tl_linear(t, m, "l1", x, 16) is
             t.linear("l1", x, 16). A pointer for a further result may be left out. A number for an
             option that has one for each dim stands for all: stride=2.
             All come from the library's own declarations: help(tally.Tape.linear) shows C's.
             reshape, permute and expand take sizes one by one, too, + - * / // % < == maximum,
             minimum and where a number beside a tensor; chunk, split and split_sizes return a list.
  Indices    x[0], x[:, 1:3], x[..., None] are views; x[ids] are rows. A mask is no index: where.
             x += y makes a new tensor: t.assign(w, w + y) changes a parameter.
  Errors     are exceptions, tally.Error, with Tally's message and the place of the call in Python.
             The object is then cleared, so that it can be used again.
  Arrays     t.data(a) copies a numpy array in, x.numpy() copies it out. model["name"] is a view of
             a parameter, without a copy: read-only, and it keeps the model alive. t.bound(a) and
             t.watch(x, a) use a where it lies, or refuse it; a function that is compiled keeps it.
  Lifetime   A tensor keeps its tape alive, a tape its model; what nobody holds is freed. A tensor
             from before a reset is an error, not a use of memory that is gone.
  Gradients  t.grad(m.find("l1.weight")) is the gradient of a parameter, as a Tensor.
  Results    that C returns through a pointer go into a tensor of your own: tally.Tensor(t).
             x.item() of I64 is an int, where C's is a double.
  Threads    as in C: a tape belongs to one thread at a time. tally.threads_set(n): for kernels.
"""
from . import core
from .core import Error, Model, Opt, Tape, Tensor
from .files import load_file, save_file
from .functions import Compiled, gradcheck, gradgradcheck

__all__ = ["Compiled", "Error", "Model", "Opt", "Tape", "Tensor", "gradcheck",
           "gradgradcheck", "load_file", "save_file"]
globals().update(core.EXPORTS)  # tanh, matmul, ...; F32, MEAN, ...; llama_config, ...
