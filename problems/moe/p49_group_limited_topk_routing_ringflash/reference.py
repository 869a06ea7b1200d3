"""MoE router alone: sigmoid scores with a bias, top-8 of the best groups of experts, scaled weights in order."""

import torch
from torch.nn.functional import linear

FULL = {"NUM_TOKENS": 16384, "GATING_DIM": 4096, "NUM_EXPERTS": 256, "NUM_EXPERTS_PER_TOKEN": 8}
SMALL = {"NUM_TOKENS": 32, "GATING_DIM": 64, "NUM_EXPERTS": 64, "NUM_EXPERTS_PER_TOKEN": 8}
TOP_K = 8  # NUM_EXPERTS_PER_TOKEN of both workloads
NUM_GROUPS = 8  # groups of consecutive experts
TOPK_GROUPS = 4
ROUTED_SCALING_FACTOR = 2.5
DECISION_MARGIN = 1.0e-4  # smallest gap that decides a choice or an order: no rounding changes either
REDRAW_LIMIT = 16
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"negative_bias": "all biased scores are negative, below any zero fill: the bias is any vector"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, all bfloat16.

    hidden_states [NUM_TOKENS, GATING_DIM]; weight [NUM_EXPERTS, GATING_DIM]; expert_bias [NUM_EXPERTS].
    """
    shape = (workload["NUM_EXPERTS"], workload["GATING_DIM"])
    weight = torch.randn(shape, device=device, dtype=torch.bfloat16) / shape[1] ** 0.5
    expert_bias = torch.randn(shape[0], device=device, dtype=torch.bfloat16)
    return draw_tokens(workload["NUM_TOKENS"], weight, expert_bias), weight, expert_bias


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    _, weight, expert_bias = make_inputs(workload, device)
    if name == "negative_bias":
        expert_bias -= 8
    return draw_tokens(workload["NUM_TOKENS"], weight, expert_bias), weight, expert_bias


def draw_tokens(tokens: int, weight: torch.Tensor, expert_bias: torch.Tensor) -> torch.Tensor:
    """Tokens bfloat16 [tokens, GATING_DIM]; redrawn where a choice or an order is closer than DECISION_MARGIN."""

    def draw(rows: int) -> torch.Tensor:
        return torch.randn(rows, weight.shape[1], device=weight.device, dtype=torch.bfloat16)

    x = draw(tokens)
    for _ in range(REDRAW_LIMIT):
        _, groups, experts = score(x, weight, expert_bias)
        groups, experts = groups.topk(TOPK_GROUPS + 1).values, experts.topk(TOP_K + 1).values
        gap = torch.minimum(groups[:, -2] - groups[:, -1], (experts[:, :-1] - experts[:, 1:]).amin(dim=1))
        close = (gap < DECISION_MARGIN).nonzero()[:, 0]
        if len(close) == 0:
            return x
        x[close] = draw(len(close))
    raise ValueError(f"{len(close)} tokens have close calls after {REDRAW_LIMIT} draws")


def score(
    x: torch.Tensor, weight: torch.Tensor, expert_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores [T, E], scores of the groups [T, NUM_GROUPS], biased scores [T, E]: the least float where dropped.

    All in float32 at least: a rounded logit would change choices.
    """
    compute = torch.promote_types(x.dtype, torch.float32)
    scores = torch.sigmoid(linear(x.to(compute), weight.to(compute)))
    biased = (scores + expert_bias.to(compute)).view(len(x), NUM_GROUPS, -1)
    groups = biased.topk(2).values.sum(-1)  # a group counts by its two best experts
    kept = torch.zeros_like(groups, dtype=torch.bool).scatter(1, groups.topk(TOPK_GROUPS).indices, True)
    biased = biased.masked_fill(~kept[..., None], torch.finfo(torch.float32).min)
    return scores, groups, biased.view(scores.shape)


def reference(
    hidden_states: torch.Tensor, weight: torch.Tensor, expert_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """topk_indices int64 and topk_weights float32, both [NUM_TOKENS, NUM_EXPERTS_PER_TOKEN].

    In each row by descending biased score; the weights come from the scores without bias and are not rounded.
    """
    scores, _, biased = score(hidden_states, weight, expert_bias)
    topk_indices = biased.topk(TOP_K, sorted=True).indices
    topk_weights = scores.gather(1, topk_indices)
    topk_weights = topk_weights / (topk_weights.sum(dim=1, keepdim=True) + 1e-20) * ROUTED_SCALING_FACTOR
    return topk_indices, topk_weights
