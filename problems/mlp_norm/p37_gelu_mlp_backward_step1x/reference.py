"""Backward pass of Linear, tanh-form GELU, Linear from saved activations in float32: five gradients."""

import torch

FULL = {"BATCH_SIZE": 64, "SEQ_LEN": 128, "HIDDEN_SIZE": 2048, "INTERMEDIATE_SIZE": 8192}
SMALL = {"BATCH_SIZE": 3, "SEQ_LEN": 7, "HIDDEN_SIZE": 32, "INTERMEDIATE_SIZE": 96}
GELU_COEFF = 0.044715
SQRT_2_OVER_PI = 0.7978845608028654
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"large_preactivations": "GELU arguments of several tens, where exp(2 u) of its tanh(u) overflows"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, float32.

    grad_output and hidden_states [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; weight1 [INTERMEDIATE_SIZE, HIDDEN_SIZE];
    weight2 [HIDDEN_SIZE, INTERMEDIATE_SIZE]; intermediate and intermediate_activated [BATCH_SIZE, SEQ_LEN,
    INTERMEDIATE_SIZE].
    """
    rows = workload["BATCH_SIZE"], workload["SEQ_LEN"]
    narrow, wide = workload["HIDDEN_SIZE"], workload["INTERMEDIATE_SIZE"]
    grad_output = torch.randn(*rows, narrow, device=device)
    hidden_states = torch.randn(*rows, narrow, device=device)
    weight1 = torch.randn(wide, narrow, device=device) / narrow**0.5
    weight2 = torch.randn(narrow, wide, device=device) / wide**0.5
    # The saved activations are independent of hidden_states and of each other, so that each of them must be read.
    intermediate = torch.randn(*rows, wide, device=device)
    intermediate_activated = torch.randn(*rows, wide, device=device)
    return grad_output, hidden_states, weight1, weight2, intermediate, intermediate_activated


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    inputs = make_inputs(workload, device)
    if name == "large_preactivations":
        f = inputs[4][..., ::8]
        f += torch.copysign(f.new_tensor(24.0), f)  # so far out that tanh(u) rounds to 1
    return inputs


def reference(
    grad_output: torch.Tensor,
    hidden_states: torch.Tensor,
    weight1: torch.Tensor,
    weight2: torch.Tensor,
    intermediate: torch.Tensor,
    intermediate_activated: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Gradients in the dtype of the inputs, of the input, the weights and the biases of the MLP.

    grad_hidden_states [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; grad_weight1 [INTERMEDIATE_SIZE, HIDDEN_SIZE],
    grad_bias1 [INTERMEDIATE_SIZE]; grad_weight2 [HIDDEN_SIZE, INTERMEDIATE_SIZE], grad_bias2 [HIDDEN_SIZE].
    """
    grad_weight2 = grad_output.flatten(0, 1).T @ intermediate_activated.flatten(0, 1)
    grad_bias2 = grad_output.sum(dim=(0, 1))
    f = intermediate
    t = torch.tanh(SQRT_2_OVER_PI * (f + GELU_COEFF * f**3))
    derivative = 0.5 * (1 + t) + 0.5 * f * (1 - t**2) * SQRT_2_OVER_PI * (1 + 3 * GELU_COEFF * f**2)
    grad_intermediate = (grad_output @ weight2) * derivative
    grad_weight1 = grad_intermediate.flatten(0, 1).T @ hidden_states.flatten(0, 1)
    grad_bias1 = grad_intermediate.sum(dim=(0, 1))
    return grad_intermediate @ weight1, grad_weight1, grad_bias1, grad_weight2, grad_bias2
