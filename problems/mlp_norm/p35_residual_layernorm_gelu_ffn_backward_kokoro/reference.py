"""Backward pass of LayerNorm(FFN(x) + x), a tanh-GELU FFN, from saved activations in float32: seven gradients."""

import torch
from torch.nn.functional import gelu, linear

FULL = {"BATCH_SIZE": 64, "SEQ_LEN": 1087, "HIDDEN_SIZE": 512, "INTERMEDIATE_SIZE": 2048}
SMALL = {"BATCH_SIZE": 3, "SEQ_LEN": 11, "HIDDEN_SIZE": 32, "INTERMEDIATE_SIZE": 96}
EPS = 1.0e-5
GELU_COEFF = 0.044715
SQRT_2_OVER_PI = 0.7978845608028654


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, float32.

    grad_output, hidden_states and normalized [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; var [BATCH_SIZE, SEQ_LEN, 1];
    fc1_output and gelu_output [BATCH_SIZE, SEQ_LEN, INTERMEDIATE_SIZE]; fc1_weight [INTERMEDIATE_SIZE,
    HIDDEN_SIZE]; fc2_weight [HIDDEN_SIZE, INTERMEDIATE_SIZE]; ln_weight [HIDDEN_SIZE].
    """
    shape = workload["BATCH_SIZE"], workload["SEQ_LEN"], workload["HIDDEN_SIZE"]
    narrow, wide = workload["HIDDEN_SIZE"], workload["INTERMEDIATE_SIZE"]
    grad_output = torch.randn(shape, device=device)
    hidden_states = 0.1 * torch.randn(shape, device=device)
    fc1_weight = torch.randn(wide, narrow, device=device) * (2 / narrow) ** 0.5
    fc2_weight = torch.randn(narrow, wide, device=device) * (2 / wide) ** 0.5
    ln_weight = torch.randn(narrow, device=device) * 0.1 + 1.0
    # The saved activations are those of the forward pass, all biases zero.
    fc1_output = linear(hidden_states, fc1_weight)
    gelu_output = gelu(fc1_output, approximate="tanh")
    total = linear(gelu_output, fc2_weight) + hidden_states
    var = total.var(dim=-1, correction=0, keepdim=True)
    normalized = (total - total.mean(dim=-1, keepdim=True)) / torch.sqrt(var + EPS)
    saved = (fc1_output, gelu_output, fc2_weight, normalized, var)
    return grad_output, hidden_states, fc1_weight, *saved, ln_weight


def reference(
    grad_output: torch.Tensor,
    hidden_states: torch.Tensor,
    fc1_weight: torch.Tensor,
    fc1_output: torch.Tensor,
    gelu_output: torch.Tensor,
    fc2_weight: torch.Tensor,
    normalized: torch.Tensor,
    var: torch.Tensor,
    ln_weight: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Gradients in the dtype of the inputs, of the input, the weights and the biases of the layer (biases are 0).

    grad_hidden_states [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; grad_fc1_weight [INTERMEDIATE_SIZE, HIDDEN_SIZE],
    grad_fc1_bias [INTERMEDIATE_SIZE]; grad_fc2_weight [HIDDEN_SIZE, INTERMEDIATE_SIZE], grad_fc2_bias
    [HIDDEN_SIZE]; grad_ln_weight and grad_ln_bias [HIDDEN_SIZE].
    """
    grad_ln_weight, grad_ln_bias = (grad_output * normalized).sum(dim=(0, 1)), grad_output.sum(dim=(0, 1))
    grad_normalized = grad_output * ln_weight
    mean = grad_normalized.mean(dim=-1, keepdim=True)
    projection = (grad_normalized * normalized).mean(dim=-1, keepdim=True)
    grad_total = (1 / torch.sqrt(var + EPS)) * (grad_normalized - mean - normalized * projection)
    grad_fc2_weight = grad_total.flatten(0, 1).T @ gelu_output.flatten(0, 1)
    grad_fc2_bias = grad_total.sum(dim=(0, 1))
    f = fc1_output
    t = torch.tanh(SQRT_2_OVER_PI * (f + GELU_COEFF * f**3))
    derivative = 0.5 * (1 + t) + 0.5 * f * (1 - t**2) * SQRT_2_OVER_PI * (1 + 3 * GELU_COEFF * f**2)
    grad_fc1_output = (grad_total @ fc2_weight) * derivative
    grad_fc1_weight = grad_fc1_output.flatten(0, 1).T @ hidden_states.flatten(0, 1)
    grad_fc1_bias = grad_fc1_output.sum(dim=(0, 1))
    grad_hidden_states = grad_fc1_output @ fc1_weight + grad_total  # through the FFN, and past it
    return (
        grad_hidden_states,
        grad_fc1_weight,
        grad_fc1_bias,
        grad_fc2_weight,
        grad_fc2_bias,
        grad_ln_weight,
        grad_ln_bias,
    )
