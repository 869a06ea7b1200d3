"""Collapse AltUp streams: project streams 1 and 2, rescale both to the RMS of stream 0, average the three."""

import torch

FULL = {"BATCH_SIZE": 64, "SEQ_LEN": 256, "HIDDEN_SIZE": 3072, "ALTUP_NUM_INPUTS": 3}
SMALL = {"BATCH_SIZE": 3, "SEQ_LEN": 11, "HIDDEN_SIZE": 64, "ALTUP_NUM_INPUTS": 3}
EPSILON = 1.0e-5
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"small_streams": "rows of streams 1 and 2 that are zero, or project to a mean square below EPSILON"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, bfloat16.

    hidden_states [ALTUP_NUM_INPUTS, BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; unembed_proj_1 and unembed_proj_2
    [HIDDEN_SIZE, HIDDEN_SIZE], not scaled by their fan-in.
    """
    columns = workload["HIDDEN_SIZE"]
    shape = workload["ALTUP_NUM_INPUTS"], workload["BATCH_SIZE"], workload["SEQ_LEN"], columns
    # Rows of independent normals all have nearly the same RMS. A scale per row makes both magnitudes matter.
    scale = (torch.rand(*shape[:3], 1, device=device) + 0.5).to(torch.bfloat16)
    hidden_states = torch.randn(shape, device=device, dtype=torch.bfloat16) * scale
    unembed_proj_1 = torch.randn(columns, columns, device=device, dtype=torch.bfloat16)
    unembed_proj_2 = torch.randn(columns, columns, device=device, dtype=torch.bfloat16)
    return hidden_states, unembed_proj_1, unembed_proj_2


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    hidden_states, *projections = make_inputs(workload, device)
    if name == "small_streams":
        rows = torch.arange(hidden_states.shape[2], device=device)[:, None] % 3
        hidden_states[1:] *= rows * (EPSILON / hidden_states.shape[3]) ** 0.5 / 2
    return hidden_states, *projections


def reference(
    hidden_states: torch.Tensor, unembed_proj_1: torch.Tensor, unembed_proj_2: torch.Tensor
) -> torch.Tensor:
    """Output [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE] in the dtype of hidden_states, rounded once at the end."""
    compute = torch.promote_types(hidden_states.dtype, torch.float32)
    first, *others = hidden_states.to(compute)
    target = torch.sqrt(first.square().mean(dim=-1, keepdim=True))
    total = first
    for stream, weight in zip(others, (unembed_proj_1, unembed_proj_2), strict=True):
        projected = stream @ weight.to(compute).T
        # the mean square is bounded from below, not its root; that of stream 0 is not
        current = torch.sqrt(projected.square().mean(dim=-1, keepdim=True).clamp(min=EPSILON))
        total = total + projected * (target / current)
    return (total / 3).to(hidden_states.dtype)
