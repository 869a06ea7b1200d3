"""GroupNorm of 32 groups with an affine map per channel, over NCHW feature maps."""

import torch

FULL = {"BATCH_SIZE": 32, "NUM_CHANNELS": 1280, "HEIGHT": 8, "WIDTH": 8}
SMALL = {"BATCH_SIZE": 2, "NUM_CHANNELS": 96, "HEIGHT": 5, "WIDTH": 7}
NUM_GROUPS = 32
EPS = 1.0e-5
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"offset_groups": "groups whose mean is 64 of their standard deviations: feature maps need not be centred"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, float32.

    x [BATCH_SIZE, NUM_CHANNELS, HEIGHT, WIDTH]; weight and bias [NUM_CHANNELS].
    """
    channels = workload["NUM_CHANNELS"]
    x = torch.randn(workload["BATCH_SIZE"], channels, workload["HEIGHT"], workload["WIDTH"], device=device)
    weight = 1 + 0.1 * torch.randn(channels, device=device)
    bias = 0.1 * torch.randn(channels, device=device)
    return x, weight, bias


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    x, weight, bias = make_inputs(workload, device)
    if name == "offset_groups":
        x = 64 + torch.randn_like(x)  # another draw: an offset alone does not change the output
    return x, weight, bias


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Output [BATCH_SIZE, NUM_CHANNELS, HEIGHT, WIDTH] in the dtype of x."""
    compute = torch.promote_types(x.dtype, torch.float32)
    groups = x.to(compute).view(len(x), NUM_GROUPS, -1)  # neighbouring channels form a group
    mean, variance = groups.mean(dim=-1, keepdim=True), groups.var(dim=-1, correction=0, keepdim=True)
    y = ((groups - mean) / torch.sqrt(variance + EPS)).view(x.shape)
    return (y * weight.to(compute)[:, None, None] + bias.to(compute)[:, None, None]).to(x.dtype)
