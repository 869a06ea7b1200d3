"""The backward problems of MLP & Norm by torch.autograd: pNN(module, inputs) gives the outputs of reference.

module is the problem's reference module, inputs are those of make_inputs promoted to float64. Saved activations
need not fit each other, so each step takes the saved value and the derivative of the step that produced it.
"""

import torch
from torch.nn.functional import gelu, linear, silu


def _saved(value, computed):  # the value that was saved, with the gradient of what computes it
    return value + (computed - computed.detach())


def _leaves(*values):
    return [v.detach().clone().requires_grad_() for v in values]


def _rsqrt_mean_square(x, value):  # rsqrt(mean(x**2) + eps), with an eps per row that makes it the saved value
    square = x.square().mean(-1, keepdim=True)
    return torch.rsqrt(square + (value**-2 - square).detach())


def p34(module, inputs):
    grad_output, x, gate_output, up_output, activated_gate, *weights = inputs
    x, gate_weight, up_weight, down_weight = leaves = _leaves(x, *weights)
    gate = _saved(gate_output, linear(x, gate_weight))
    product = _saved(activated_gate, silu(gate)) * _saved(up_output, linear(x, up_weight))
    return torch.autograd.grad(linear(product, down_weight), leaves, grad_output)


def p35(module, inputs):
    grad_output, x, w1, fc1_output, gelu_output, w2, normalized, var, ln_weight = inputs
    zeros = [torch.zeros_like(w1[:, 0]), torch.zeros_like(w2[:, 0]), torch.zeros_like(ln_weight)]
    x, w1, b1, w2, b2, ln_weight, ln_bias = leaves = _leaves(x, w1, zeros[0], w2, zeros[1], ln_weight, zeros[2])
    f = _saved(fc1_output, linear(x, w1, b1))
    a = _saved(gelu_output, gelu(f, approximate="tanh"))
    total = _saved(normalized * torch.sqrt(var + module.EPS), linear(a, w2, b2) + x)
    mean = total.mean(-1, keepdim=True)
    centred = total - (mean - mean.detach())  # the mean of what was saved is zero but for its rounding
    y = centred * _rsqrt_mean_square(total, torch.rsqrt(var + module.EPS))
    return torch.autograd.grad(y * ln_weight + ln_bias, leaves, grad_output)


def p37(module, inputs):
    grad_output, x, w1, w2, intermediate, intermediate_activated = inputs
    x, w1, b1, w2, b2 = leaves = _leaves(x, w1, torch.zeros_like(w1[:, 0]), w2, torch.zeros_like(w2[:, 0]))
    a = _saved(intermediate_activated, gelu(_saved(intermediate, linear(x, w1, b1)), approximate="tanh"))
    return torch.autograd.grad(linear(a, w2, b2), leaves, grad_output)


def p38(module, inputs):
    grad_output, normalized, rstd, weight = inputs
    x = normalized / rstd
    hidden, residual, weight = leaves = _leaves(x / 2, x / 2, weight)
    total = hidden + residual
    return torch.autograd.grad(total * _rsqrt_mean_square(total, rstd) * weight, leaves, grad_output)


def p43(module, inputs):
    grad_output, input_ids, x, rstd, norm_weight = inputs
    rows = module.ROWS_PER_COLUMN * x.shape[-1]
    table, norm_weight = leaves = _leaves(x.new_zeros(rows, x.shape[-1]), norm_weight)
    x = _saved(x, table[input_ids])
    return torch.autograd.grad(x * _rsqrt_mean_square(x, rstd) * norm_weight, leaves, grad_output)
