"""Transformer feed-forward in float32: Linear, GELU in its tanh form, Linear."""

import torch
from torch.nn.functional import gelu, linear

FULL = {"BATCH_SIZE": 32, "SEQ_LEN": 512, "HIDDEN_DIM": 3072, "MLP_HIDDEN_DIM": 12288}
SMALL = {"BATCH_SIZE": 3, "SEQ_LEN": 13, "HIDDEN_DIM": 32, "MLP_HIDDEN_DIM": 128}
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"large_preactivations": "GELU arguments of several tens, where exp(2 u) of its tanh(u) overflows"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, float32.

    hidden_states [BATCH_SIZE, SEQ_LEN, HIDDEN_DIM]; fc1_weight [MLP_HIDDEN_DIM, HIDDEN_DIM], fc1_bias
    [MLP_HIDDEN_DIM]; fc2_weight [HIDDEN_DIM, MLP_HIDDEN_DIM], fc2_bias [HIDDEN_DIM].
    """
    narrow, wide = workload["HIDDEN_DIM"], workload["MLP_HIDDEN_DIM"]
    hidden_states = torch.randn(workload["BATCH_SIZE"], workload["SEQ_LEN"], narrow, device=device)
    fc1_weight = torch.randn(wide, narrow, device=device) / narrow**0.5
    fc1_bias = torch.randn(wide, device=device)
    fc2_weight = torch.randn(narrow, wide, device=device) / wide**0.5
    fc2_bias = torch.randn(narrow, device=device)
    return hidden_states, fc1_weight, fc1_bias, fc2_weight, fc2_bias


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    hidden_states, *others = make_inputs(workload, device)
    if name == "large_preactivations":
        hidden_states *= 16
    return hidden_states, *others


def reference(
    hidden_states: torch.Tensor,
    fc1_weight: torch.Tensor,
    fc1_bias: torch.Tensor,
    fc2_weight: torch.Tensor,
    fc2_bias: torch.Tensor,
) -> torch.Tensor:
    """Output [BATCH_SIZE, SEQ_LEN, HIDDEN_DIM] in the dtype of the inputs."""
    return linear(gelu(linear(hidden_states, fc1_weight, fc1_bias), approximate="tanh"), fc2_weight, fc2_bias)
