"""Multi-token-prediction entry: embed the next ids, RMS-normalise them and the hidden state, project the two."""

import torch
from torch.nn.functional import embedding, linear

FULL = {"BATCH_SIZE": 32, "SEQ_LEN": 256, "VOCAB_SIZE": 157184, "HIDDEN_SIZE": 4096, "CONCAT_SIZE": 8192}
SMALL = {"BATCH_SIZE": 3, "SEQ_LEN": 13, "VOCAB_SIZE": 997, "HIDDEN_SIZE": 64, "CONCAT_SIZE": 128}
EPS = 1.0e-6
PROJ_STD = 0.02
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"small_rows": "rows of zeros, and rows of a mean square near EPS, in the table and the hidden state"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, bfloat16 but for the ids.

    input_ids int64 [BATCH_SIZE, SEQ_LEN]; hidden_states [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; word_embeddings
    [VOCAB_SIZE, HIDDEN_SIZE]; enorm_weight and hnorm_weight [HIDDEN_SIZE]; eh_proj_weight [HIDDEN_SIZE,
    CONCAT_SIZE], where CONCAT_SIZE is 2 * HIDDEN_SIZE.
    """

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    def scale(*shape: int) -> torch.Tensor:
        return (torch.rand(shape, device=device) + 0.5).to(torch.bfloat16)

    rows, columns = (workload["BATCH_SIZE"], workload["SEQ_LEN"]), workload["HIDDEN_SIZE"]
    vocabulary = workload["VOCAB_SIZE"]
    input_ids = torch.randint(vocabulary, rows, device=device)
    # Rows of independent normals all have nearly the same RMS. A scale per row makes both statistics matter.
    hidden_states = normal(*rows, columns).mul_(scale(*rows, 1))
    word_embeddings = normal(vocabulary, columns).mul_(scale(vocabulary, 1))
    enorm_weight, hnorm_weight = normal(columns) * 0.1 + 1.0, normal(columns) * 0.1 + 1.0
    eh_proj_weight = normal(columns, workload["CONCAT_SIZE"]) * PROJ_STD
    return input_ids, hidden_states, word_embeddings, enorm_weight, hnorm_weight, eh_proj_weight


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    input_ids, hidden_states, word_embeddings, *weights = make_inputs(workload, device)
    if name == "small_rows":
        for x in hidden_states, word_embeddings:
            x *= EPS**0.5 * (torch.arange(x.shape[-2], device=device)[:, None] % 2)
    return input_ids, hidden_states, word_embeddings, *weights


def reference(
    input_ids: torch.Tensor,
    hidden_states: torch.Tensor,
    word_embeddings: torch.Tensor,
    enorm_weight: torch.Tensor,
    hnorm_weight: torch.Tensor,
    eh_proj_weight: torch.Tensor,
) -> torch.Tensor:
    """Output [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE] in the dtype of hidden_states."""
    next_ids = input_ids.roll(-1, dims=1)
    next_ids[:, -1] = 0  # the last position gets id 0
    embedded = rms_norm(embedding(next_ids, word_embeddings), enorm_weight)
    hidden = rms_norm(hidden_states, hnorm_weight)
    return linear(torch.cat((embedded, hidden), dim=-1), eh_proj_weight)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [..., HIDDEN_SIZE] normalised, in the dtype of weight: rounded before and after the product with it."""
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    return weight * (y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + EPS)).to(weight.dtype)
