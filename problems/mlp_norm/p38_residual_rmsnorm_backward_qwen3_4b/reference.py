"""Backward pass of RMSNorm(hidden + residual): the gradient of both addends, and that of the weight."""

import torch

FULL = {"BATCH_SIZE": 64, "SEQ_LEN": 8192, "HIDDEN_SIZE": 2560}
SMALL = {"BATCH_SIZE": 3, "SEQ_LEN": 23, "HIDDEN_SIZE": 80}
EPS = 1.0e-6  # of the forward pass
GRAD_CORRELATION = 0.5


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw.

    grad_output bfloat16 and normalized float32 [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; rstd float32 [BATCH_SIZE,
    SEQ_LEN, 1]; weight float32 [HIDDEN_SIZE].
    """
    shape = workload["BATCH_SIZE"], workload["SEQ_LEN"], workload["HIDDEN_SIZE"]
    x = torch.randn(shape, device=device)
    x *= 1.5 * torch.rand(*shape[:2], 1, device=device) + 0.5  # so that rstd differs between rows
    rstd = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS)
    normalized = x.mul_(rstd)  # in place: the full tensor is 5 GB
    weight = torch.randn(shape[2], device=device) * 0.1 + 1.0
    # A gradient independent of x has next to no component along it, and the term that removes it would not show.
    grad_output = torch.randn(shape, device=device).addcmul_(normalized, weight, value=GRAD_CORRELATION)
    return grad_output.to(torch.bfloat16), normalized, rstd, weight


def reference(
    grad_output: torch.Tensor, normalized: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """grad_hidden_states and grad_residual, two tensors of equal values in the shape and dtype of grad_output.

    The third output is grad_weight [HIDDEN_SIZE], which stays in the dtype of weight.
    """
    grad = grad_output.to(torch.promote_types(grad_output.dtype, torch.float32))
    grad_weight = (grad * normalized).sum(dim=(0, 1))
    grad_normalized = grad * weight
    projection = (grad_normalized * normalized).mean(dim=-1, keepdim=True)
    grad_hidden_states = (rstd * (grad_normalized - projection * normalized)).to(grad_output.dtype)
    return grad_hidden_states, grad_hidden_states.clone(), grad_weight
