"""Add a residual to the hidden state and RMS-normalise the sum; only the normalised tensor is returned."""

import torch

FULL = {"BATCH_SIZE": 14509, "HIDDEN_SIZE": 4096}
SMALL = {"BATCH_SIZE": 29, "HIDDEN_SIZE": 64}
EPS = 1.0e-5
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {
    "small_sums": "rows of the sum that are zero, or of a mean square near EPS: the terms may cancel",
    "wide_scales": "rows of scale 2**-20 to 2**50: their sums of squares fit into float32",
    "one_large": "one element of a row of the sum is 16, no other above 1: elements of a row need not be alike",
    "signed_weight": "a weight with zeros and negative values: it is any vector",
}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw: hidden_states and residual [BATCH_SIZE, HIDDEN_SIZE], weight [HIDDEN_SIZE]."""
    shape = (workload["BATCH_SIZE"], workload["HIDDEN_SIZE"])
    # Rows of independent normals all have nearly the same RMS. A scale per row makes the statistic matter.
    scale = torch.rand(shape[0], 1, device=device) + 0.5
    hidden_states = (torch.randn(shape, device=device) * scale).to(torch.bfloat16)
    residual = (torch.randn(shape, device=device) * scale).to(torch.bfloat16)
    weight = (1 + 0.1 * torch.randn(shape[1], device=device)).to(torch.bfloat16)
    return hidden_states, residual, weight


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    hidden_states, residual, weight = make_inputs(workload, device)
    rows, columns = (torch.arange(n, device=device) for n in hidden_states.shape)
    if name == "small_sums":
        hidden_states.copy_(residual).mul_(-1 - 2**-7 * (rows[:, None] % 2))
    elif name == "wide_scales":
        scale = torch.exp2(70 * torch.rand(len(rows), 1, device=device) - 20)
        hidden_states *= scale
        residual *= scale
    elif name == "one_large":
        for x in hidden_states, residual:
            x.copy_((1 + torch.rand_like(x)) / 4)
            x[rows, -rows % len(columns)] = 8
    elif name == "signed_weight":
        weight *= columns % 3 - 1
    return hidden_states, residual, weight


def reference(hidden_states: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Output [BATCH_SIZE, HIDDEN_SIZE] in the dtype of hidden_states, rounded once at the end."""
    compute = torch.promote_types(hidden_states.dtype, torch.float32)
    total = hidden_states.to(compute) + residual.to(compute)  # the sum is not rounded to bfloat16
    inverse_rms = torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + EPS)
    return (total * inverse_rms * weight.to(compute)).to(hidden_states.dtype)
