"""Add a residual, RMS-normalise the sum, then a SwiGLU MLP; the residual is not added to its output."""

import torch
from torch.nn.functional import linear, silu

FULL = {"BATCH_SIZE": 64, "SEQ_LEN": 128, "HIDDEN_SIZE": 16384, "INTERMEDIATE_SIZE": 53248}
SMALL = {"BATCH_SIZE": 3, "SEQ_LEN": 9, "HIDDEN_SIZE": 64, "INTERMEDIATE_SIZE": 208}
EPS = 1.0e-5
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"small_sums": "rows of the sum that are zero, or of a mean square near EPS: the terms may cancel"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, bfloat16.

    hidden_states and residual [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; norm_weight [HIDDEN_SIZE]; gate_proj_weight and
    up_proj_weight [INTERMEDIATE_SIZE, HIDDEN_SIZE]; down_proj_weight [HIDDEN_SIZE, INTERMEDIATE_SIZE].
    """

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    batch, length = workload["BATCH_SIZE"], workload["SEQ_LEN"]
    narrow, wide = workload["HIDDEN_SIZE"], workload["INTERMEDIATE_SIZE"]
    # Rows of independent normals all have nearly the same RMS. A scale per row makes the statistic matter.
    scale = (torch.rand(batch, length, 1, device=device) + 0.5).to(torch.bfloat16)
    hidden_states, residual = normal(batch, length, narrow) * scale, normal(batch, length, narrow) * scale
    norm_weight = normal(narrow) * 0.1 + 1.0
    gate_proj_weight = normal(wide, narrow) / narrow**0.5
    up_proj_weight = normal(wide, narrow) / narrow**0.5
    down_proj_weight = normal(narrow, wide) / wide**0.5
    return hidden_states, residual, norm_weight, gate_proj_weight, up_proj_weight, down_proj_weight


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    hidden_states, residual, *weights = make_inputs(workload, device)
    if name == "small_sums":
        rows = torch.arange(hidden_states.shape[1], device=device)
        hidden_states.copy_(residual).mul_(-1 - 2**-7 * (rows[:, None] % 2))
    return hidden_states, residual, *weights


def reference(
    hidden_states: torch.Tensor,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    gate_proj_weight: torch.Tensor,
    up_proj_weight: torch.Tensor,
    down_proj_weight: torch.Tensor,
) -> torch.Tensor:
    """Output [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE] in the dtype of hidden_states; every step rounds to that dtype."""
    total = residual + hidden_states
    x = total.to(torch.promote_types(total.dtype, torch.float32))
    x = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS)
    normalised = (norm_weight * x).to(total.dtype)  # one rounding, after the product
    gate, up = linear(normalised, gate_proj_weight), linear(normalised, up_proj_weight)
    return linear(silu(gate) * up, down_proj_weight)
