"""LayerNorm vision patches, join each 2x2 neighbourhood of a grid into a row, then Linear, exact GELU, Linear."""

import torch
from torch.nn.functional import gelu, linear

FULL = {
    "NUM_PATCHES": 32768,
    "NUM_GRIDS": 8,
    "NUM_MERGED": 8192,  # NUM_PATCHES / MERGE_SIZE**2
    "HIDDEN_SIZE": 1536,
    "HIDDEN_SIZE_EXPANDED": 6144,  # HIDDEN_SIZE * MERGE_SIZE**2
    "OUT_HIDDEN_SIZE": 3584,
}
SMALL = {
    "NUM_PATCHES": 144,
    "NUM_GRIDS": 2,
    "NUM_MERGED": 36,
    "HIDDEN_SIZE": 32,
    "HIDDEN_SIZE_EXPANDED": 128,
    "OUT_HIDDEN_SIZE": 48,
}
MERGE_SIZE = 2
EPS = 1.0e-6
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"flat_patches": "patches of zeros, and patches of a variance near EPS: images have plain areas"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, bfloat16 but for grid_thw.

    hidden [NUM_PATCHES, HIDDEN_SIZE]; grid_thw int64 [NUM_GRIDS, 3], rows of frames, height, width; ln_weight and
    ln_bias [HIDDEN_SIZE]; fc1_weight [HIDDEN_SIZE_EXPANDED, HIDDEN_SIZE_EXPANDED]; fc1_bias
    [HIDDEN_SIZE_EXPANDED]; fc2_weight [OUT_HIDDEN_SIZE, HIDDEN_SIZE_EXPANDED]; fc2_bias [OUT_HIDDEN_SIZE].
    """

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    patches, columns = workload["NUM_PATCHES"], workload["HIDDEN_SIZE"]
    wide, out = workload["HIDDEN_SIZE_EXPANDED"], workload["OUT_HIDDEN_SIZE"]
    # A mean and a scale per patch: without them all patches have nearly the same statistics.
    scale = (torch.rand(patches, 1, device=device) + 0.5).to(torch.bfloat16)
    hidden = normal(patches, columns) * scale + 0.5 * normal(patches, 1)
    # Grids of equal size and random shape: height and width are multiples of MERGE_SIZE, at most 4 frames.
    size = patches // workload["NUM_GRIDS"]
    shapes = [
        (t, h, size // (t * h))
        for t in range(1, 5)
        for h in range(MERGE_SIZE, size + 1, MERGE_SIZE)
        if size % (t * h * MERGE_SIZE) == 0
    ]
    choice = torch.randint(len(shapes), (workload["NUM_GRIDS"],), device=device)
    grid_thw = torch.tensor(shapes, device=device)[choice]
    ln_weight, ln_bias = normal(columns) * 0.1 + 1.0, normal(columns) * 0.1
    fc1_weight, fc1_bias = normal(wide, wide) / wide**0.5, normal(wide)
    fc2_weight, fc2_bias = normal(out, wide) / wide**0.5, normal(out)
    return hidden, grid_thw, ln_weight, ln_bias, fc1_weight, fc1_bias, fc2_weight, fc2_bias


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    hidden, *others = make_inputs(workload, device)
    if name == "flat_patches":
        hidden *= EPS**0.5 * (torch.arange(len(hidden), device=device)[:, None] % 2)
    return hidden, *others


def reference(
    hidden: torch.Tensor,
    grid_thw: torch.Tensor,
    ln_weight: torch.Tensor,
    ln_bias: torch.Tensor,
    fc1_weight: torch.Tensor,
    fc1_bias: torch.Tensor,
    fc2_weight: torch.Tensor,
    fc2_bias: torch.Tensor,
) -> torch.Tensor:
    """Output [NUM_MERGED, OUT_HIDDEN_SIZE] in the dtype of hidden."""
    compute = torch.promote_types(hidden.dtype, torch.float32)
    x = hidden.to(compute)
    x = (x - x.mean(dim=-1, keepdim=True)) / torch.sqrt(x.var(dim=-1, correction=0, keepdim=True) + EPS)
    y = (x * ln_weight.to(compute) + ln_bias.to(compute)).to(hidden.dtype)
    m, columns = MERGE_SIZE, hidden.shape[1]
    sizes = grid_thw.tolist()
    merged = [
        # a merged row: patches (2i, 2j), (2i, 2j + 1), (2i + 1, 2j), (2i + 1, 2j + 1) of one frame
        part.view(t, h // m, m, w // m, m, columns).transpose(2, 3).reshape(-1, m * m * columns)
        for part, (t, h, w) in zip(y.split([t * h * w for t, h, w in sizes]), sizes, strict=True)
    ]
    # each linear layer and the GELU round once, to the dtype of hidden
    return linear(gelu(linear(torch.cat(merged), fc1_weight, fc1_bias)), fc2_weight, fc2_bias)
