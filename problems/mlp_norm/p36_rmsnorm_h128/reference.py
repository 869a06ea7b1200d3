"""RMSNorm over very many short rows: flattened per-head query and key vectors."""

import torch

FULL = {"BATCH_SIZE": 520128, "HIDDEN_SIZE": 128}
SMALL = {"BATCH_SIZE": 96, "HIDDEN_SIZE": 128}
EPS = 1.0e-6


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw: hidden_states [BATCH_SIZE, HIDDEN_SIZE] and weight [HIDDEN_SIZE]."""
    shape = (workload["BATCH_SIZE"], workload["HIDDEN_SIZE"])
    hidden_states = torch.randn(shape, device=device, dtype=torch.bfloat16)
    weight = (1 + 0.1 * torch.randn(shape[1], device=device)).to(torch.bfloat16)
    return hidden_states, weight


def reference(hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Output [BATCH_SIZE, HIDDEN_SIZE] in the dtype of hidden_states, rounded once at the end."""
    compute = torch.promote_types(hidden_states.dtype, torch.float32)
    x = hidden_states.to(compute)
    inverse_rms = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS)
    return (x * inverse_rms * weight.to(compute)).to(hidden_states.dtype)
