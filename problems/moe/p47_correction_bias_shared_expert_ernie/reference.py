"""ERNIE MoE block: softmax router, the bias in choice and weights, top-8 SwiGLU experts, a shared expert."""

import torch
from torch.nn.functional import linear, silu

FULL = {
    "BATCH_SIZE": 64,
    "SEQ_LEN": 128,
    "NUM_TOKENS": 8192,  # BATCH_SIZE * SEQ_LEN
    "HIDDEN_SIZE": 8192,
    "NUM_EXPERTS": 64,
    "INTERMEDIATE_SIZE": 3584,
    "SHARED_INTERMEDIATE_SIZE": 7168,
    "CORRECTION_BIAS_STD": 0.02,
}
SMALL = {
    "BATCH_SIZE": 2,
    "SEQ_LEN": 10,
    "NUM_TOKENS": 20,
    "HIDDEN_SIZE": 64,
    "NUM_EXPERTS": 48,
    "INTERMEDIATE_SIZE": 16,
    "SHARED_INTERMEDIATE_SIZE": 32,
    "CORRECTION_BIAS_STD": 0.027,  # beside the mean probability, 1 / NUM_EXPERTS, what it is in FULL
}
TOP_K = 8
NORM_MIN = 1.0e-10
DECISION_MARGIN = 1.0e-4  # smallest gap between what is selected and what is not: no rounding changes the choice
REDRAW_LIMIT = 16
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"negative_bias": "biased scores have a negative sum, so NORM_MIN takes its place: the bias is any vector"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, bfloat16 but for the router's two in float32.

    hidden_states [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; gate_weight float32 [NUM_EXPERTS, HIDDEN_SIZE];
    e_score_correction_bias float32 [1, NUM_EXPERTS]; expert_gate_proj and expert_up_proj [NUM_EXPERTS,
    INTERMEDIATE_SIZE, HIDDEN_SIZE], expert_down_proj [NUM_EXPERTS, HIDDEN_SIZE, INTERMEDIATE_SIZE];
    shared_gate_proj and shared_up_proj [SHARED_INTERMEDIATE_SIZE, HIDDEN_SIZE], shared_down_proj [HIDDEN_SIZE,
    SHARED_INTERMEDIATE_SIZE].
    """

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    hidden, experts = workload["HIDDEN_SIZE"], workload["NUM_EXPERTS"]
    inner, shared = workload["INTERMEDIATE_SIZE"], workload["SHARED_INTERMEDIATE_SIZE"]
    gate_weight = torch.randn(experts, hidden, device=device) / hidden**0.5
    bias = torch.randn(1, experts, device=device) * workload["CORRECTION_BIAS_STD"]
    x = draw_tokens(workload["NUM_TOKENS"], gate_weight, bias)
    return (
        x.view(workload["BATCH_SIZE"], workload["SEQ_LEN"], hidden),
        gate_weight,
        bias,
        normal(experts, inner, hidden).div_(hidden**0.5),
        normal(experts, inner, hidden).div_(hidden**0.5),
        normal(experts, hidden, inner).div_(inner**0.5),
        normal(shared, hidden).div_(hidden**0.5),
        normal(shared, hidden).div_(hidden**0.5),
        normal(hidden, shared).div_(shared**0.5),
    )


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    hidden_states, gate_weight, bias, *others = make_inputs(workload, device)
    if name == "negative_bias":
        bias -= 1  # the same for all experts: the choice stays as it is
    return hidden_states, gate_weight, bias, *others


def draw_tokens(tokens: int, gate_weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Tokens bfloat16 [tokens, HIDDEN_SIZE]; where a choice is closer than DECISION_MARGIN, drawn again."""

    def draw(rows: int) -> torch.Tensor:
        return torch.randn(rows, gate_weight.shape[1], device=bias.device, dtype=torch.bfloat16)

    x = draw(tokens)
    for _ in range(REDRAW_LIMIT):
        best = score(x, gate_weight, bias)[1].topk(TOP_K + 1).values
        close = (best[:, -2] - best[:, -1] < DECISION_MARGIN).nonzero()[:, 0]
        if len(close) == 0:
            return x
        x[close] = draw(len(close))
    raise ValueError(f"{len(close)} tokens have close calls after {REDRAW_LIMIT} draws")


def score(x: torch.Tensor, gate_weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and biased probabilities of tokens x [T, HIDDEN_SIZE], [T, NUM_EXPERTS] in gate_weight's dtype."""
    logits = linear(x.to(gate_weight.dtype), gate_weight)
    return logits, torch.softmax(logits, dim=1) + bias


def reference(
    hidden_states: torch.Tensor,
    gate_weight: torch.Tensor,
    e_score_correction_bias: torch.Tensor,
    expert_gate_proj: torch.Tensor,
    expert_up_proj: torch.Tensor,
    expert_down_proj: torch.Tensor,
    shared_gate_proj: torch.Tensor,
    shared_up_proj: torch.Tensor,
    shared_down_proj: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE] in the dtype of hidden_states, and the router's logits.

    The logits, [NUM_TOKENS, NUM_EXPERTS] in the dtype of gate_weight, are those before softmax and bias. Outside
    the router every operation rounds to the dtype of hidden_states.
    """
    x = hidden_states.flatten(0, 1)
    shared = linear(silu(linear(x, shared_gate_proj)) * linear(x, shared_up_proj), shared_down_proj)
    logits, biased = score(x, gate_weight, e_score_correction_bias)
    weights, selected = biased.topk(TOP_K)  # the biased probabilities are the weights too
    weights = (weights / weights.sum(dim=1, keepdim=True).clamp(min=NORM_MIN)).to(x.dtype)
    routed = torch.zeros_like(x)
    for i in range(len(expert_gate_proj)):
        token, slot = (selected == i).nonzero(as_tuple=True)
        if len(token) == 0:
            continue
        h = x[token]
        h = linear(silu(linear(h, expert_gate_proj[i])) * linear(h, expert_up_proj[i]), expert_down_proj[i])
        routed.index_add_(0, token, h * weights[token, slot, None])
    return (routed + shared).view(hidden_states.shape), logits
