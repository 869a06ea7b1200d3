"""Qwen3-Next MoE block: softmax top-10 of many small SwiGLU experts, and a shared expert under a sigmoid gate."""

import torch
from torch.nn.functional import linear

FULL = {
    "BATCH_SIZE": 64,
    "SEQ_LEN": 613,
    "NUM_TOKENS": 39232,  # BATCH_SIZE * SEQ_LEN
    "HIDDEN_SIZE": 2048,
    "NUM_EXPERTS": 512,
    "MOE_INTERMEDIATE_SIZE": 512,
    "SHARED_EXPERT_INTERMEDIATE_SIZE": 512,
}
SMALL = {
    "BATCH_SIZE": 2,
    "SEQ_LEN": 7,
    "NUM_TOKENS": 14,
    "HIDDEN_SIZE": 64,
    "NUM_EXPERTS": 48,
    "MOE_INTERMEDIATE_SIZE": 16,
    "SHARED_EXPERT_INTERMEDIATE_SIZE": 16,
}
TOP_K = 10
DECISION_MARGIN = 1.0e-5  # smallest gap between what is selected and what is not: no rounding changes the choice
REDRAW_LIMIT = 16
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"skewed": "tokens are alike, so some experts get nearly all of them and many none: loads have no bound"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, all bfloat16.

    hidden_states [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; router_weight [NUM_EXPERTS, HIDDEN_SIZE]; expert_gate_proj
    and expert_up_proj [NUM_EXPERTS, MOE_INTERMEDIATE_SIZE, HIDDEN_SIZE], expert_down_proj [NUM_EXPERTS,
    HIDDEN_SIZE, MOE_INTERMEDIATE_SIZE]; shared_gate_proj and shared_up_proj [SHARED_EXPERT_INTERMEDIATE_SIZE,
    HIDDEN_SIZE], shared_down_proj [HIDDEN_SIZE, SHARED_EXPERT_INTERMEDIATE_SIZE]; shared_expert_gate_weight [1,
    HIDDEN_SIZE].
    """

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    hidden, experts = workload["HIDDEN_SIZE"], workload["NUM_EXPERTS"]
    inner, shared = workload["MOE_INTERMEDIATE_SIZE"], workload["SHARED_EXPERT_INTERMEDIATE_SIZE"]
    router_weight = normal(experts, hidden) / hidden**0.5
    x = draw_tokens(workload["NUM_TOKENS"], router_weight)
    return (
        x.view(workload["BATCH_SIZE"], workload["SEQ_LEN"], hidden),
        router_weight,
        normal(experts, inner, hidden).div_(hidden**0.5),
        normal(experts, inner, hidden).div_(hidden**0.5),
        normal(experts, hidden, inner).div_(inner**0.5),
        normal(shared, hidden).div_(hidden**0.5),
        normal(shared, hidden).div_(hidden**0.5),
        normal(hidden, shared).div_(shared**0.5),
        normal(1, hidden).div_(hidden**0.5),
    )


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    hidden_states, router_weight, *others = make_inputs(workload, device)
    if name == "skewed":
        common = torch.randn_like(router_weight[:1])
        hidden_states = draw_tokens(workload["NUM_TOKENS"], router_weight, common, 0.25).view(hidden_states.shape)
    return hidden_states, router_weight, *others


def draw_tokens(
    tokens: int, router_weight: torch.Tensor, mean: torch.Tensor | float = 0.0, std: float = 1.0
) -> torch.Tensor:
    """Tokens bfloat16 [tokens, HIDDEN_SIZE]; where a choice is closer than DECISION_MARGIN, drawn again."""

    def draw(rows: int) -> torch.Tensor:
        shape, device = (rows, router_weight.shape[1]), router_weight.device
        return torch.randn(shape, device=device, dtype=torch.bfloat16) * std + mean

    x = draw(tokens)
    for _ in range(REDRAW_LIMIT):
        best = torch.softmax(score(x, router_weight), dim=1).topk(TOP_K + 1).values
        close = (best[:, -2] - best[:, -1] < DECISION_MARGIN).nonzero()[:, 0]
        if len(close) == 0:
            return x
        x[close] = draw(len(close))
    raise ValueError(f"{len(close)} tokens have close calls after {REDRAW_LIMIT} draws")


def score(x: torch.Tensor, router_weight: torch.Tensor) -> torch.Tensor:
    """Logits [T, NUM_EXPERTS] of tokens x [T, HIDDEN_SIZE], in float32: bfloat16 would select other experts."""
    compute = torch.promote_types(x.dtype, torch.float32)
    return linear(x.to(compute), router_weight.to(compute))


def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """One expert on rows x [T, HIDDEN_SIZE]; every operation, the sigmoid too, rounds to the dtype of x."""
    g = linear(x, gate)
    return linear(g * torch.sigmoid(g) * linear(x, up), down)


def reference(
    hidden_states: torch.Tensor,
    router_weight: torch.Tensor,
    expert_gate_proj: torch.Tensor,
    expert_up_proj: torch.Tensor,
    expert_down_proj: torch.Tensor,
    shared_gate_proj: torch.Tensor,
    shared_up_proj: torch.Tensor,
    shared_down_proj: torch.Tensor,
    shared_expert_gate_weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE] and router logits [NUM_TOKENS, NUM_EXPERTS], in the input's dtype.

    The router works in float32 and rounds its weights and, for the return only, its logits. All else rounds to the
    dtype of hidden_states after every operation.
    """
    x = hidden_states.flatten(0, 1)
    logits = score(x, router_weight)
    weights, selected = torch.softmax(logits, dim=1).topk(TOP_K)
    weights = (weights / weights.sum(dim=1, keepdim=True)).to(x.dtype)
    routed = torch.zeros_like(x)
    for i in range(len(expert_gate_proj)):
        token, slot = (selected == i).nonzero(as_tuple=True)
        if len(token) == 0:
            continue
        y = swiglu(x[token], expert_gate_proj[i], expert_up_proj[i], expert_down_proj[i])
        routed.index_add_(0, token, y * weights[token, slot, None])
    shared = swiglu(x, shared_gate_proj, shared_up_proj, shared_down_proj)
    shared = torch.sigmoid(linear(x, shared_expert_gate_weight)) * shared
    return (routed + shared).view(hidden_states.shape), logits.to(x.dtype)
