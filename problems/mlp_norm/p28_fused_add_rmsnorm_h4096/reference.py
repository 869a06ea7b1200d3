"""Add a residual to the hidden state and RMS-normalise the sum; only the normalised tensor is returned."""

import torch

FULL = {"BATCH_SIZE": 14509, "HIDDEN_SIZE": 4096}
SMALL = {"BATCH_SIZE": 29, "HIDDEN_SIZE": 64}
EPS = 1.0e-5


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw: hidden_states and residual [BATCH_SIZE, HIDDEN_SIZE], weight [HIDDEN_SIZE]."""
    shape = (workload["BATCH_SIZE"], workload["HIDDEN_SIZE"])
    # Rows of independent normals all have nearly the same RMS. A scale per row makes the statistic matter.
    scale = torch.rand(shape[0], 1, device=device) + 0.5
    hidden_states = (torch.randn(shape, device=device) * scale).to(torch.bfloat16)
    residual = (torch.randn(shape, device=device) * scale).to(torch.bfloat16)
    weight = (1 + 0.1 * torch.randn(shape[1], device=device)).to(torch.bfloat16)
    return hidden_states, residual, weight


def reference(hidden_states: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Output [BATCH_SIZE, HIDDEN_SIZE] in the dtype of hidden_states, rounded once at the end."""
    compute = torch.promote_types(hidden_states.dtype, torch.float32)
    total = hidden_states.to(compute) + residual.to(compute)  # the sum is not rounded to bfloat16
    inverse_rms = torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + EPS)
    return (total * inverse_rms * weight.to(compute)).to(hidden_states.dtype)
