"""Backward pass of embedding and RMSNorm: dense gradient of the table (scatter-add) and of the norm weight."""

import torch

FULL = {"BATCH_SIZE": 64, "SEQ_LEN": 256, "VOCAB_SIZE": 65536, "HIDDEN_SIZE": 4096}
SMALL = {"BATCH_SIZE": 3, "SEQ_LEN": 61, "VOCAB_SIZE": 512, "HIDDEN_SIZE": 32}
ROWS_PER_COLUMN = 16  # VOCAB_SIZE / HIDDEN_SIZE: no input has the size of the table
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"frequent_id": "half of the tokens have one id: padding, or a frequent word"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw.

    grad_output bfloat16 and hidden_states_fp32 float32 [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; input_ids int64
    [BATCH_SIZE, SEQ_LEN]; rstd float32 [BATCH_SIZE, SEQ_LEN, 1]; norm_weight bfloat16 [HIDDEN_SIZE].
    """
    shape = workload["BATCH_SIZE"], workload["SEQ_LEN"], workload["HIDDEN_SIZE"]
    grad_output = torch.randn(shape, device=device, dtype=torch.bfloat16)
    input_ids = torch.randint(workload["VOCAB_SIZE"], shape[:2], device=device)
    # Not the rows of a table, and rstd not their statistic: both are saved values that must be read.
    hidden_states_fp32 = torch.randn(shape, device=device)
    rstd = torch.rsqrt(2.0 * torch.rand(*shape[:2], 1, device=device) + 0.1 + 1e-6)
    norm_weight = torch.randn(shape[2], device=device, dtype=torch.bfloat16) * 0.1 + 1.0
    return grad_output, input_ids, hidden_states_fp32, rstd, norm_weight


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    inputs = make_inputs(workload, device)
    if name == "frequent_id":
        input_ids = inputs[1]
        input_ids[:, ::2] = input_ids[0, 0].clone()
    return inputs


def reference(
    grad_output: torch.Tensor,
    input_ids: torch.Tensor,
    hidden_states_fp32: torch.Tensor,
    rstd: torch.Tensor,
    norm_weight: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """grad_embed_weight [VOCAB_SIZE, HIDDEN_SIZE] and grad_norm_weight [HIDDEN_SIZE] in the dtype of grad_output.

    Each is summed in the compute dtype and rounded once; VOCAB_SIZE is ROWS_PER_COLUMN * HIDDEN_SIZE.
    """
    compute = torch.promote_types(grad_output.dtype, torch.float32)
    grad, columns = grad_output.to(compute), grad_output.shape[-1]
    normalized = hidden_states_fp32 * rstd
    grad_norm_weight = (grad * normalized).sum(dim=(0, 1))
    grad_normalized = grad * norm_weight.to(compute)
    projection = (grad_normalized * normalized).mean(dim=-1, keepdim=True)
    grad_hidden = rstd * (grad_normalized - projection * normalized)
    grad_embed_weight = torch.zeros(ROWS_PER_COLUMN * columns, columns, dtype=compute, device=grad.device)
    grad_embed_weight.index_add_(0, input_ids.flatten(), grad_hidden.flatten(0, 1))
    return grad_embed_weight.to(grad_output.dtype), grad_norm_weight.to(grad_output.dtype)
