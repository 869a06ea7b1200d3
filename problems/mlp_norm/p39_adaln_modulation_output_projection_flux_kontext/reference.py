"""Final adaptive LayerNorm of a diffusion transformer: scale and shift from a time embedding, a projection."""

import torch
from torch.nn.functional import linear, silu

FULL = {"BATCH_SIZE": 32, "SEQ_LEN": 256, "INNER_DIM": 3072, "OUTPUT_DIM": 64, "MODULATION_DIM": 6144}
SMALL = {"BATCH_SIZE": 3, "SEQ_LEN": 37, "INNER_DIM": 64, "OUTPUT_DIM": 16, "MODULATION_DIM": 128}
EPS = 1.0e-6
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"offset_rows": "rows whose mean is 64 of their standard deviations: hidden states need not be centred"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, float32.

    hidden_states [BATCH_SIZE, SEQ_LEN, INNER_DIM]; temb [BATCH_SIZE, INNER_DIM]; linear_weight [MODULATION_DIM,
    INNER_DIM], linear_bias [MODULATION_DIM]; proj_out_weight [OUTPUT_DIM, INNER_DIM], proj_out_bias [OUTPUT_DIM].
    MODULATION_DIM is 2 * INNER_DIM.
    """
    batch, inner, out = workload["BATCH_SIZE"], workload["INNER_DIM"], workload["OUTPUT_DIM"]
    hidden_states = torch.randn(batch, workload["SEQ_LEN"], inner, device=device)
    temb = torch.randn(batch, inner, device=device)
    linear_weight = torch.randn(workload["MODULATION_DIM"], inner, device=device) / inner**0.5
    linear_bias = torch.randn(workload["MODULATION_DIM"], device=device)
    proj_out_weight = torch.randn(out, inner, device=device) / inner**0.5
    proj_out_bias = torch.randn(out, device=device)
    return hidden_states, temb, linear_weight, linear_bias, proj_out_weight, proj_out_bias


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    hidden_states, *others = make_inputs(workload, device)
    if name == "offset_rows":
        hidden_states = 64 + torch.randn_like(hidden_states)  # an offset alone does not change the output
    return hidden_states, *others


def reference(
    hidden_states: torch.Tensor,
    temb: torch.Tensor,
    linear_weight: torch.Tensor,
    linear_bias: torch.Tensor,
    proj_out_weight: torch.Tensor,
    proj_out_bias: torch.Tensor,
) -> torch.Tensor:
    """Output [BATCH_SIZE, SEQ_LEN, OUTPUT_DIM] in the dtype of the inputs."""
    variance = hidden_states.var(dim=-1, correction=0, keepdim=True)
    y = (hidden_states - hidden_states.mean(dim=-1, keepdim=True)) / torch.sqrt(variance + EPS)
    shift, scale = linear(silu(temb), linear_weight, linear_bias)[:, None].chunk(2, dim=-1)  # shift comes first
    return linear(y * (1 + scale) + shift, proj_out_weight, proj_out_bias)
