"""Project to query, key and value heads in float32; RMS-normalise query and key per head, leave value plain."""

import torch
from torch.nn.functional import linear

FULL = {
    "BATCH_SIZE": 64,
    "SEQ_LEN": 128,
    "HIDDEN_SIZE": 1024,
    "NUM_HEADS": 8,
    "HEAD_DIM": 128,
    "QKV_OUT_SIZE": 1024,  # NUM_HEADS * HEAD_DIM
}
SMALL = {
    "BATCH_SIZE": 3,
    "SEQ_LEN": 7,
    "HIDDEN_SIZE": 64,
    "NUM_HEADS": 2,
    "HEAD_DIM": 64,
    "QKV_OUT_SIZE": 128,
}
EPS = 1.0e-6
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"small_tokens": "tokens of zeros (padding), and tokens whose heads have a mean square near EPS"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, float32.

    hidden_states [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; q_proj_weight, k_proj_weight and v_proj_weight [QKV_OUT_SIZE,
    HIDDEN_SIZE]; q_norm_weight and k_norm_weight [HEAD_DIM].
    """
    columns = workload["HIDDEN_SIZE"]
    hidden_states = torch.randn(workload["BATCH_SIZE"], workload["SEQ_LEN"], columns, device=device)
    q_proj_weight, k_proj_weight, v_proj_weight = (
        torch.randn(workload["QKV_OUT_SIZE"], columns, device=device) / columns**0.5 for _ in range(3)
    )
    q_norm_weight, k_norm_weight = (torch.randn(workload["HEAD_DIM"], device=device) * 0.1 + 1.0 for _ in range(2))
    return hidden_states, q_proj_weight, k_proj_weight, v_proj_weight, q_norm_weight, k_norm_weight


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    hidden_states, *weights = make_inputs(workload, device)
    if name == "small_tokens":
        hidden_states *= EPS**0.5 * (torch.arange(hidden_states.shape[1], device=device)[:, None] % 2)
    return hidden_states, *weights


def reference(
    hidden_states: torch.Tensor,
    q_proj_weight: torch.Tensor,
    k_proj_weight: torch.Tensor,
    v_proj_weight: torch.Tensor,
    q_norm_weight: torch.Tensor,
    k_norm_weight: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """query_states, key_states and value_states [BATCH_SIZE, SEQ_LEN, NUM_HEADS, HEAD_DIM] in their dtype.

    The norm weights serve all heads; there is no attention scale.
    """
    head = len(q_norm_weight)
    projections = (q_proj_weight, k_proj_weight, v_proj_weight)
    q, k, v = (linear(hidden_states, w).unflatten(-1, (-1, head)) for w in projections)
    query_states = q / torch.sqrt(q.square().mean(dim=-1, keepdim=True) + EPS) * q_norm_weight
    key_states = k / torch.sqrt(k.square().mean(dim=-1, keepdim=True) + EPS) * k_norm_weight
    return query_states, key_states, v
