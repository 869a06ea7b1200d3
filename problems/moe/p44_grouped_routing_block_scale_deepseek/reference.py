"""DeepSeek-V3 MoE layer of one expert-parallel rank: grouped top-8 routing, FP8 block-scaled SwiGLU experts."""

import torch
from torch.nn.functional import silu

FULL = {
    "SEQ_LEN": 14107,
    "NUM_GLOBAL_EXPERTS": 256,
    "NUM_LOCAL_EXPERTS": 32,
    "HIDDEN_SIZE": 7168,
    "INTERMEDIATE_SIZE": 2048,
    "UP_GATE_SIZE": 4096,  # 2 * INTERMEDIATE_SIZE
    "HIDDEN_BLOCKS": 56,  # sizes / BLOCK_SIZE
    "INTERMEDIATE_BLOCKS": 16,
    "UP_GATE_BLOCKS": 32,
    "HIGH_BIAS_EXPERTS": (12, 17, 16, 17, 9, 6, 11, 13),  # of each group
    "BIAS_HIGH": 4.96875,
}
SMALL = {
    "SEQ_LEN": 24,
    "NUM_GLOBAL_EXPERTS": 64,
    "NUM_LOCAL_EXPERTS": 8,
    "HIDDEN_SIZE": 256,
    "INTERMEDIATE_SIZE": 128,
    "UP_GATE_SIZE": 256,
    "HIDDEN_BLOCKS": 2,
    "INTERMEDIATE_BLOCKS": 1,
    "UP_GATE_BLOCKS": 2,
    "HIGH_BIAS_EXPERTS": (3, 4, 4, 4, 2, 2, 3, 3),
    "BIAS_HIGH": 5.0,  # few tokens: the step of FULL would hardly change a choice
}
BLOCK_SIZE = 128
TOP_K = 8
NUM_GROUPS = 8  # groups of consecutive global experts
TOPK_GROUPS = 4
RANK = 1  # local expert i is global expert RANK * NUM_LOCAL_EXPERTS + i: exactly the experts of group 1
ROUTED_SCALING_FACTOR = 2.5
LOGITS_MEAN, LOGITS_STD = -1.6706, 0.6560
BIAS_BASE = 4.9375
DECISION_MARGIN = 1.0e-4  # smallest gap between what is selected and what is not: no rounding changes the choice
REDRAW_LIMIT = 16
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {
    "crowded": "every token selects the same eight local experts, others get none: loads have no bound",
    "negative_bias": "all biased scores are negative, below any zero fill: the bias is any vector",
}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw; e4m3 is float8_e4m3fn.

    routing_logits float32 [SEQ_LEN, NUM_GLOBAL_EXPERTS]; routing_bias bfloat16 [NUM_GLOBAL_EXPERTS]; hidden_states
    e4m3 [SEQ_LEN, HIDDEN_SIZE] and its scale float32 [HIDDEN_BLOCKS, SEQ_LEN], the block first; gemm1_weights e4m3
    [NUM_LOCAL_EXPERTS, UP_GATE_SIZE, HIDDEN_SIZE], rows of up before rows of gate, and its scale float32
    [NUM_LOCAL_EXPERTS, UP_GATE_BLOCKS, HIDDEN_BLOCKS]; gemm2_weights e4m3 [NUM_LOCAL_EXPERTS, HIDDEN_SIZE,
    INTERMEDIATE_SIZE] and its scale float32 [NUM_LOCAL_EXPERTS, HIDDEN_BLOCKS, INTERMEDIATE_BLOCKS].
    """

    def fp8(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).to(torch.float8_e4m3fn)

    def scale(*shape: int) -> torch.Tensor:
        return torch.rand(shape, device=device)

    tokens, local = workload["SEQ_LEN"], workload["NUM_LOCAL_EXPERTS"]
    global_experts = workload["NUM_GLOBAL_EXPERTS"]
    hidden, inner = workload["HIDDEN_SIZE"], workload["INTERMEDIATE_SIZE"]
    blocks, inner_blocks = workload["HIDDEN_BLOCKS"], workload["INTERMEDIATE_BLOCKS"]
    # Two levels of bias. Which experts of a group have the high one is drawn; how many is fixed: loads stay alike.
    place = torch.rand(NUM_GROUPS, global_experts // NUM_GROUPS, device=device).argsort(1).argsort(1)
    high = place < torch.tensor(workload["HIGH_BIAS_EXPERTS"], device=device)[:, None]
    bias = torch.where(high.flatten(), workload["BIAS_HIGH"], BIAS_BASE).to(torch.bfloat16)
    return (
        draw_logits(tokens, bias),
        bias,
        fp8(tokens, hidden),
        scale(blocks, tokens),
        fp8(local, 2 * inner, hidden),
        scale(local, 2 * inner_blocks, blocks),
        fp8(local, hidden, inner),
        scale(local, blocks, inner_blocks),
    )


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    logits, bias, *others = make_inputs(workload, device)
    local, raised = workload["NUM_LOCAL_EXPERTS"], torch.zeros(len(bias), device=device)
    if name == "crowded":
        raised[RANK * local + torch.randperm(local, device=device)[:TOP_K]] = 6
    elif name == "negative_bias":
        bias -= 10
    return draw_logits(len(logits), bias, raised), bias, *others


def draw_logits(tokens: int, bias: torch.Tensor, raised: torch.Tensor | float = 0.0) -> torch.Tensor:
    """Router logits float32 [tokens, E] with the values of a bfloat16 router, `raised` added.

    Tokens whose choice of groups or experts is closer than DECISION_MARGIN are drawn again.
    """

    def draw(rows: int) -> torch.Tensor:
        logits = torch.randn(rows, len(bias), device=bias.device) * LOGITS_STD + LOGITS_MEAN + raised
        return logits.to(torch.bfloat16).to(torch.float32)

    logits = draw(tokens)
    for _ in range(REDRAW_LIMIT):
        _, groups, experts = score(logits, bias)
        groups, experts = groups.topk(TOPK_GROUPS + 1).values, experts.topk(TOP_K + 1).values
        gap = torch.minimum(groups[:, -2] - groups[:, -1], experts[:, -2] - experts[:, -1])
        close = (gap < DECISION_MARGIN).nonzero()[:, 0]
        if len(close) == 0:
            return logits
        logits[close] = draw(len(close))
    raise ValueError(f"{len(close)} tokens have close calls after {REDRAW_LIMIT} draws")


def score(logits: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores [T, E], scores of the groups [T, NUM_GROUPS], biased scores [T, E]: the least float where dropped."""
    scores = torch.sigmoid(logits)
    biased = (scores + bias.to(logits.dtype)).view(len(logits), NUM_GROUPS, -1)
    groups = biased.topk(2).values.sum(-1)  # a group counts by its two best experts
    kept = torch.zeros_like(groups, dtype=torch.bool).scatter(1, groups.topk(TOPK_GROUPS).indices, True)
    biased = biased.masked_fill(~kept[..., None], torch.finfo(torch.float32).min)
    return scores, groups, biased.view(logits.shape)


def dequantise(weights: torch.Tensor, scale: torch.Tensor, compute: torch.dtype) -> torch.Tensor:
    """Weights [N, K] times the scale [N / BLOCK_SIZE, K / BLOCK_SIZE] of their block, in the dtype compute."""
    scale = scale.to(compute).repeat_interleave(BLOCK_SIZE, 0).repeat_interleave(BLOCK_SIZE, 1)
    return weights.to(compute) * scale


def reference(
    routing_logits: torch.Tensor,
    routing_bias: torch.Tensor,
    hidden_states: torch.Tensor,
    hidden_states_scale: torch.Tensor,
    gemm1_weights: torch.Tensor,
    gemm1_weights_scale: torch.Tensor,
    gemm2_weights: torch.Tensor,
    gemm2_weights_scale: torch.Tensor,
) -> torch.Tensor:
    """Output [SEQ_LEN, HIDDEN_SIZE] in the dtype of routing_bias, rounded once; zero where no expert is local."""
    compute = torch.promote_types(routing_logits.dtype, torch.float32)
    scores, _, biased = score(routing_logits.to(compute), routing_bias)
    selected = biased.topk(TOP_K).indices
    weights = scores.gather(1, selected)  # the bias selects but does not weigh
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * ROUTED_SCALING_FACTOR
    x = hidden_states.to(compute) * hidden_states_scale.to(compute).t().repeat_interleave(BLOCK_SIZE, 1)
    output = torch.zeros_like(x)
    local = gemm1_weights.shape[0]
    for i in range(local):
        token, slot = (selected == RANK * local + i).nonzero(as_tuple=True)
        if len(token) == 0:
            continue
        up, gate = (x[token] @ dequantise(gemm1_weights[i], gemm1_weights_scale[i], compute).t()).chunk(2, dim=1)
        y = (silu(gate) * up) @ dequantise(gemm2_weights[i], gemm2_weights_scale[i], compute).t()
        output.index_add_(0, token, y * weights[token, slot, None])
    return output.to(routing_bias.dtype)
