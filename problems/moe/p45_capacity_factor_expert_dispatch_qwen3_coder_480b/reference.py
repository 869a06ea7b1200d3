"""MoE with capacity: each expert serves its first assignments up to a limit, by batched SwiGLU; weighted sum."""

import torch
from torch.nn.functional import silu

FULL = {
    "NUM_TOKENS": 8192,
    "HIDDEN_SIZE": 6144,
    "MOE_INTERMEDIATE_SIZE": 2560,
    "NUM_EXPERTS": 160,
    "NUM_EXPERTS_PER_TOK": 8,
}
SMALL = {
    "NUM_TOKENS": 48,
    "HIDDEN_SIZE": 32,
    "MOE_INTERMEDIATE_SIZE": 16,
    "NUM_EXPERTS": 24,
    "NUM_EXPERTS_PER_TOK": 3,
}
CAPACITY_FACTOR = 1.25
POPULARITY_STD = 0.5


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, bfloat16 but for selected_experts.

    hidden_states [NUM_TOKENS, HIDDEN_SIZE]; selected_experts int64 and routing_weights [NUM_TOKENS,
    NUM_EXPERTS_PER_TOK], the experts of a token all different; expert_gate_weights and expert_up_weights
    [NUM_EXPERTS, HIDDEN_SIZE, MOE_INTERMEDIATE_SIZE]; expert_down_weights [NUM_EXPERTS, MOE_INTERMEDIATE_SIZE,
    HIDDEN_SIZE].
    """

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    tokens, experts, slots = workload["NUM_TOKENS"], workload["NUM_EXPERTS"], workload["NUM_EXPERTS_PER_TOK"]
    hidden, inner = workload["HIDDEN_SIZE"], workload["MOE_INTERMEDIATE_SIZE"]
    # Gumbel noise on a popularity: uniform choices would load all experts alike and never reach the capacity.
    noise = -torch.log(-torch.log(torch.rand(tokens, experts, device=device)))
    scores = POPULARITY_STD * torch.randn(experts, device=device) + noise
    selected = scores.argsort(dim=1, descending=True)[:, :slots].contiguous()
    routing_weights = torch.softmax(normal(tokens, slots).to(torch.float32), dim=1).to(torch.bfloat16)
    return (
        normal(tokens, hidden),
        selected,
        routing_weights,
        normal(experts, hidden, inner).div_(hidden**0.5),
        normal(experts, hidden, inner).div_(hidden**0.5),
        normal(experts, inner, hidden).div_(inner**0.5),
    )


def reference(
    hidden_states: torch.Tensor,
    selected_experts: torch.Tensor,
    routing_weights: torch.Tensor,
    expert_gate_weights: torch.Tensor,
    expert_up_weights: torch.Tensor,
    expert_down_weights: torch.Tensor,
) -> torch.Tensor:
    """Output [NUM_TOKENS, HIDDEN_SIZE] in the dtype of hidden_states; every operation rounds to it.

    An expert serves its first assignments, in the order of the tokens, up to its capacity. The others are dropped:
    no other expert takes them, and the weights of a token's remaining experts stay as they are.
    """
    (tokens, slots), experts = selected_experts.shape, expert_gate_weights.shape[0]
    capacity = max(int(tokens * slots / experts * CAPACITY_FACTOR), 1)
    assigned = selected_experts.flatten()  # token by token
    loads = torch.bincount(assigned, minlength=experts)
    order = assigned.argsort(stable=True)
    rank = torch.empty_like(assigned)  # place of an assignment among those of its expert
    starts = (loads.cumsum(0) - loads)[assigned[order]]
    rank[order] = torch.arange(len(order), device=order.device) - starts
    kept = (rank < capacity).nonzero()[:, 0]
    expert, rank, token = assigned[kept], rank[kept], kept // slots

    x = hidden_states.new_zeros(experts, capacity, hidden_states.shape[1])
    x[expert, rank] = hidden_states[token]
    gate, up = torch.bmm(x, expert_gate_weights), torch.bmm(x, expert_up_weights)
    del x
    y = torch.bmm(silu(gate) * up, expert_down_weights)
    del gate, up
    weighted = y[expert, rank] * routing_weights.flatten()[kept, None]
    return torch.zeros_like(hidden_states).index_add_(0, token, weighted)
