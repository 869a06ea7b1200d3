"""ConvNeXt V2 pointwise MLP, channels last: Linear, exact GELU, response normalisation over each image, Linear."""

import torch
from torch.nn.functional import gelu, linear

FULL = {"BATCH_SIZE": 64, "HEIGHT": 56, "WIDTH": 56, "DIM": 128, "HIDDEN_DIM": 512}
SMALL = {"BATCH_SIZE": 3, "HEIGHT": 5, "WIDTH": 7, "DIM": 16, "HIDDEN_DIM": 64}
EPS = 1.0e-6


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, float32.

    hidden_states [BATCH_SIZE, HEIGHT, WIDTH, DIM]; pwconv1_weight [HIDDEN_DIM, DIM], pwconv1_bias [HIDDEN_DIM];
    grn_weight and grn_bias [1, 1, 1, HIDDEN_DIM]; pwconv2_weight [DIM, HIDDEN_DIM], pwconv2_bias [DIM].
    """
    narrow, wide = workload["DIM"], workload["HIDDEN_DIM"]
    hidden_states = torch.randn(
        workload["BATCH_SIZE"], workload["HEIGHT"], workload["WIDTH"], narrow, device=device
    )
    pwconv1_weight = torch.randn(wide, narrow, device=device) / narrow**0.5
    pwconv1_bias = torch.randn(wide, device=device)
    grn_weight = torch.randn(1, 1, 1, wide, device=device) / wide**0.5
    grn_bias = torch.randn(1, 1, 1, wide, device=device)
    pwconv2_weight = torch.randn(narrow, wide, device=device) / wide**0.5
    pwconv2_bias = torch.randn(narrow, device=device)
    return hidden_states, pwconv1_weight, pwconv1_bias, grn_weight, grn_bias, pwconv2_weight, pwconv2_bias


def reference(
    hidden_states: torch.Tensor,
    pwconv1_weight: torch.Tensor,
    pwconv1_bias: torch.Tensor,
    grn_weight: torch.Tensor,
    grn_bias: torch.Tensor,
    pwconv2_weight: torch.Tensor,
    pwconv2_bias: torch.Tensor,
) -> torch.Tensor:
    """Output [BATCH_SIZE, HEIGHT, WIDTH, DIM] in the dtype of the inputs."""
    x = gelu(linear(hidden_states, pwconv1_weight, pwconv1_bias))
    norm = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)  # of each channel, over the pixels of one image
    response = norm / (norm.mean(dim=-1, keepdim=True) + EPS)
    return linear(grn_weight * (x * response) + grn_bias + x, pwconv2_weight, pwconv2_bias)
