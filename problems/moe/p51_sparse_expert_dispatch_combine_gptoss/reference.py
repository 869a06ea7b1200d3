"""gpt-oss experts: interleaved gate and up projection, clamped gated unit, down projection, weighted sum."""

import torch

FULL = {
    "NUM_TOKENS": 16384,
    "HIDDEN_SIZE": 2880,
    "INTERMEDIATE_SIZE": 2880,
    "GATE_UP_SIZE": 5760,  # 2 * INTERMEDIATE_SIZE
    "NUM_LOCAL_EXPERTS": 128,
    "NUM_EXPERTS_PER_TOKEN": 4,
    "GATE_UP_STD": 0.03,
}
SMALL = {
    "NUM_TOKENS": 16,
    "HIDDEN_SIZE": 48,
    "INTERMEDIATE_SIZE": 48,
    "GATE_UP_SIZE": 96,
    "NUM_LOCAL_EXPERTS": 24,
    "NUM_EXPERTS_PER_TOKEN": 4,
    "GATE_UP_STD": 0.4,  # at this width few values would reach GLU_LIMIT otherwise
}
GLU_ALPHA = 1.702
GLU_LIMIT = 7.0
GATE_UP_BIAS_STD = 0.5
DOWN_STD = 0.02
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {
    "skewed": "some experts get nearly all tokens and many get none: loads have no bound",
    "masked": "some slots, and all slots of some tokens, hold the index NUM_LOCAL_EXPERTS: it marks unused slots",
}


def make_inputs(workload: dict, device: str, popularity_std: float = 0.0) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, float32 but for router_indices.

    hidden_states [NUM_TOKENS, HIDDEN_SIZE]; router_indices int64 [NUM_TOKENS, NUM_EXPERTS_PER_TOKEN], the experts
    of a token all different; routing_weights [NUM_TOKENS, NUM_LOCAL_EXPERTS], of all experts; gate_up_projection
    [NUM_LOCAL_EXPERTS, HIDDEN_SIZE, GATE_UP_SIZE], even columns gate and odd columns up, and its bias
    [NUM_LOCAL_EXPERTS, GATE_UP_SIZE]; down_projection [NUM_LOCAL_EXPERTS, INTERMEDIATE_SIZE, HIDDEN_SIZE] and its
    bias [NUM_LOCAL_EXPERTS, HIDDEN_SIZE].
    """

    def normal(std: float, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).mul_(std)

    tokens, hidden, inner = (workload[n] for n in ("NUM_TOKENS", "HIDDEN_SIZE", "INTERMEDIATE_SIZE"))
    experts, slots = workload["NUM_LOCAL_EXPERTS"], workload["NUM_EXPERTS_PER_TOKEN"]
    logits = normal(1.0, tokens, experts) + normal(popularity_std, experts)
    return (
        normal(1.0, tokens, hidden),
        logits.topk(slots, dim=1).indices,
        torch.softmax(logits, dim=1),  # over all experts: those of a token's four do not sum to one
        normal(workload["GATE_UP_STD"], experts, hidden, 2 * inner),
        normal(GATE_UP_BIAS_STD, experts, 2 * inner),
        normal(DOWN_STD, experts, inner, hidden),
        normal(DOWN_STD, experts, hidden),
    )


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    hidden_states, router_indices, *others = make_inputs(workload, device, 4.0 if name == "skewed" else 0.0)
    if name == "masked":
        unused = torch.rand(router_indices.shape, device=device) < 0.25
        unused[::4] = True
        router_indices[unused] = workload["NUM_LOCAL_EXPERTS"]
    return hidden_states, router_indices, *others


def reference(
    hidden_states: torch.Tensor,
    router_indices: torch.Tensor,
    routing_weights: torch.Tensor,
    gate_up_projection: torch.Tensor,
    gate_up_projection_bias: torch.Tensor,
    down_projection: torch.Tensor,
    down_projection_bias: torch.Tensor,
) -> torch.Tensor:
    """Output [NUM_TOKENS, HIDDEN_SIZE]; an index NUM_LOCAL_EXPERTS in router_indices adds nothing."""
    output = torch.zeros_like(hidden_states)
    for i in range(len(gate_up_projection)):
        token = (router_indices == i).nonzero()[:, 0]
        if len(token) == 0:
            continue
        gate_up = hidden_states[token] @ gate_up_projection[i] + gate_up_projection_bias[i]
        gate = gate_up[:, 0::2].clamp(max=GLU_LIMIT)  # no lower limit, unlike up
        up = gate_up[:, 1::2].clamp(min=-GLU_LIMIT, max=GLU_LIMIT)
        inner = (up + 1) * (gate * torch.sigmoid(GLU_ALPHA * gate))
        y = inner @ down_projection[i] + down_projection_bias[i]
        output.index_add_(0, token, y * routing_weights[token, i, None])
    return output
