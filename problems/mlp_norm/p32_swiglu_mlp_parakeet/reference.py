"""Gated MLP in float32: one projection to gate and up, the product up * SiLU(gate), a projection; no biases."""

import torch
from torch.nn.functional import linear, silu

FULL = {
    "BATCH_SIZE": 64,
    "SEQ_LEN": 128,
    "HIDDEN_SIZE": 1024,
    "INTERMEDIATE_SIZE": 4096,
    "INTERMEDIATE_SIZE_X2": 8192,  # 2 * INTERMEDIATE_SIZE
}
SMALL = {
    "BATCH_SIZE": 3,
    "SEQ_LEN": 11,
    "HIDDEN_SIZE": 32,
    "INTERMEDIATE_SIZE": 96,
    "INTERMEDIATE_SIZE_X2": 192,
}
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"large_gates": "gates beyond 88 on both sides, where exp of float32 overflows: no gate is bounded"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, float32.

    hidden_states [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; gate_up_weight [INTERMEDIATE_SIZE_X2, HIDDEN_SIZE], the rows
    of the gate before those of up; down_weight [HIDDEN_SIZE, INTERMEDIATE_SIZE].
    """
    narrow, wide = workload["HIDDEN_SIZE"], workload["INTERMEDIATE_SIZE"]
    hidden_states = torch.randn(workload["BATCH_SIZE"], workload["SEQ_LEN"], narrow, device=device)
    gate_up_weight = torch.randn(workload["INTERMEDIATE_SIZE_X2"], narrow, device=device) / narrow**0.5
    down_weight = torch.randn(narrow, wide, device=device) / wide**0.5
    return hidden_states, gate_up_weight, down_weight


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    hidden_states, gate_up_weight, down_weight = make_inputs(workload, device)
    if name == "large_gates":
        hidden_states *= 64
    return hidden_states, gate_up_weight, down_weight


def reference(
    hidden_states: torch.Tensor, gate_up_weight: torch.Tensor, down_weight: torch.Tensor
) -> torch.Tensor:
    """Output [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE] in the dtype of the inputs."""
    gate, up = linear(hidden_states, gate_up_weight).chunk(2, dim=-1)
    return linear(up * silu(gate), down_weight)
