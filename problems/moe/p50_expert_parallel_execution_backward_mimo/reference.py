"""Backward of routed SwiGLU experts with weighted sum, activations recomputed: five gradients in float32."""

import torch
from torch.nn.functional import silu

FULL = {
    "NUM_TOKENS": 6144,
    "HIDDEN_SIZE": 4096,
    "INTERMEDIATE_SIZE": 1024,
    "NUM_ROUTED_EXPERTS": 256,
    "NUM_EXPERTS_PER_TOKEN": 8,
    "WEIGHT_STD": 0.02,
}
SMALL = {
    "NUM_TOKENS": 32,
    "HIDDEN_SIZE": 16,
    "INTERMEDIATE_SIZE": 16,
    "NUM_ROUTED_EXPERTS": 24,
    "NUM_EXPERTS_PER_TOKEN": 4,
    "WEIGHT_STD": 0.3,  # the activations of narrow layers then are near those of FULL
}
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"skewed": "some experts get nearly all tokens and many get none: loads have no bound"}


def make_inputs(workload: dict, device: str, popularity_std: float = 0.0) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, float32 but for topk_indices.

    grad_output and hidden_states [NUM_TOKENS, HIDDEN_SIZE]; topk_indices int64 and topk_weights [NUM_TOKENS,
    NUM_EXPERTS_PER_TOKEN], the experts of a token all different; gate_weights and up_weights [NUM_ROUTED_EXPERTS,
    INTERMEDIATE_SIZE, HIDDEN_SIZE]; down_weights [NUM_ROUTED_EXPERTS, HIDDEN_SIZE, INTERMEDIATE_SIZE].
    """
    tokens, hidden, inner = (workload[n] for n in ("NUM_TOKENS", "HIDDEN_SIZE", "INTERMEDIATE_SIZE"))
    experts, slots, std = (workload[n] for n in ("NUM_ROUTED_EXPERTS", "NUM_EXPERTS_PER_TOKEN", "WEIGHT_STD"))
    # Exponential waiting times: the first arrivals are a uniform choice where all experts are equally popular.
    arrival = -torch.log1p(-torch.rand(tokens, experts, device=device))
    arrival = arrival * torch.exp(popularity_std * torch.randn(experts, device=device))
    return (
        torch.randn(tokens, hidden, device=device),
        torch.randn(tokens, hidden, device=device),
        arrival.argsort(dim=1)[:, :slots].contiguous(),
        torch.softmax(torch.randn(tokens, slots, device=device), dim=1),
        torch.randn(experts, inner, hidden, device=device).mul_(std),
        torch.randn(experts, inner, hidden, device=device).mul_(std),
        torch.randn(experts, hidden, inner, device=device).mul_(std),
    )


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    return make_inputs(workload, device, {"skewed": 4.0}[name])


def reference(
    grad_output: torch.Tensor,
    hidden_states: torch.Tensor,
    topk_indices: torch.Tensor,
    topk_weights: torch.Tensor,
    gate_weights: torch.Tensor,
    up_weights: torch.Tensor,
    down_weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of hidden_states, topk_weights, gate_weights, up_weights, down_weights, shaped like these.

    The forward is out[t] = sum over k of topk_weights[t, k] * ((silu(x @ Wg.T) * (x @ Wu.T)) @ Wd.T) with x =
    hidden_states[t] and the weights of expert topk_indices[t, k]. An expert without tokens has gradients of zero.
    """
    grad_hidden, grad_topk = torch.zeros_like(hidden_states), torch.zeros_like(topk_weights)
    grad_gate, grad_up, grad_down = (torch.zeros_like(w) for w in (gate_weights, up_weights, down_weights))
    for i in range(len(gate_weights)):
        token, slot = (topk_indices == i).nonzero(as_tuple=True)
        if len(token) == 0:
            continue
        x, grad = hidden_states[token], grad_output[token]
        gate, up = x @ gate_weights[i].t(), x @ up_weights[i].t()
        activated = silu(gate)
        inner = activated * up
        grad_topk[token, slot] = (grad * (inner @ down_weights[i].t())).sum(dim=1)
        grad = grad * topk_weights[token, slot, None]
        grad_down[i] = grad.t() @ inner
        grad_inner = grad @ down_weights[i]
        sigmoid = torch.sigmoid(gate)
        grad_g = grad_inner * up * (sigmoid * (1 + gate * (1 - sigmoid)))
        grad_u = grad_inner * activated
        grad_gate[i] = grad_g.t() @ x
        grad_up[i] = grad_u.t() @ x
        grad_hidden.index_add_(0, token, grad_g @ gate_weights[i] + grad_u @ up_weights[i])
    return grad_hidden, grad_topk, grad_gate, grad_up, grad_down
