"""RMSNorm over very many short rows: flattened per-head query and key vectors."""

import torch

FULL = {"BATCH_SIZE": 520128, "HIDDEN_SIZE": 128}
SMALL = {"BATCH_SIZE": 96, "HIDDEN_SIZE": 128}
EPS = 1.0e-6
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {
    "small_rows": "rows of zeros, and rows whose mean square is near EPS: no row is bounded from below",
    "wide_scales": "rows of scale 2**-20 to 2**50: their sums of squares fit into float32",
    "one_large": "one element of a row is 16, no other above 1: elements of a row need not be alike",
    "signed_weight": "a weight with zeros and negative values: it is any vector",
}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw: hidden_states [BATCH_SIZE, HIDDEN_SIZE] and weight [HIDDEN_SIZE]."""
    shape = (workload["BATCH_SIZE"], workload["HIDDEN_SIZE"])
    hidden_states = torch.randn(shape, device=device, dtype=torch.bfloat16)
    weight = (1 + 0.1 * torch.randn(shape[1], device=device)).to(torch.bfloat16)
    return hidden_states, weight


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    hidden_states, weight = make_inputs(workload, device)
    rows, columns = (torch.arange(n, device=device) for n in hidden_states.shape)
    if name == "small_rows":
        hidden_states *= EPS**0.5 * (rows[:, None] % 2)
    elif name == "wide_scales":
        hidden_states *= torch.exp2(70 * torch.rand(len(rows), 1, device=device) - 20)
    elif name == "one_large":
        hidden_states = (1 + torch.rand_like(hidden_states)) / 2
        hidden_states[rows, -rows % len(columns)] = 16
    elif name == "signed_weight":
        weight *= columns % 3 - 1
    return hidden_states, weight


def reference(hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Output [BATCH_SIZE, HIDDEN_SIZE] in the dtype of hidden_states, rounded once at the end."""
    compute = torch.promote_types(hidden_states.dtype, torch.float32)
    x = hidden_states.to(compute)
    inverse_rms = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS)
    return (x * inverse_rms * weight.to(compute)).to(hidden_states.dtype)
