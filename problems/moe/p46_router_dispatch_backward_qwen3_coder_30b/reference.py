"""Backward of a top-8 router: through weight normalisation, selection, softmax and the router's projection."""

import torch

FULL = {"NUM_TOKENS": 65536, "HIDDEN_SIZE": 2048, "NUM_EXPERTS": 128, "TOP_K": 8}
SMALL = {"NUM_TOKENS": 56, "HIDDEN_SIZE": 32, "NUM_EXPERTS": 32, "TOP_K": 8}
GATE_STD = 0.02
GRAD_STD = 0.1


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, bfloat16 where nothing else is said.

    hidden_states [NUM_TOKENS, HIDDEN_SIZE]; gate_weight [NUM_EXPERTS, HIDDEN_SIZE]; saved by the forward:
    routing_probs float32 [NUM_TOKENS, NUM_EXPERTS], selected_experts int64 [NUM_TOKENS, TOP_K], its experts all
    different, and routing_weights_sum float32 [NUM_TOKENS, 1], the sum of the selected probabilities; incoming:
    grad_routing_weights [NUM_TOKENS, TOP_K], grad_expert_mask [NUM_EXPERTS, TOP_K, NUM_TOKENS], grad_router_logits
    [NUM_TOKENS, NUM_EXPERTS].
    """

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    tokens, hidden = workload["NUM_TOKENS"], workload["HIDDEN_SIZE"]
    experts, slots = workload["NUM_EXPERTS"], workload["TOP_K"]
    # Logits in bfloat16 tie often. Which of two equal experts topk takes does not matter: the choice is an input.
    probs = torch.softmax(normal(tokens, experts).to(torch.float32), dim=1)
    selected = probs.topk(slots, dim=1)
    return (
        normal(tokens, hidden),
        normal(experts, hidden) * GATE_STD,
        probs,
        selected.indices,
        selected.values.sum(dim=1, keepdim=True),
        normal(tokens, slots) * GRAD_STD,
        normal(experts, slots, tokens) * GRAD_STD,
        normal(tokens, experts) * GRAD_STD,
    )


def reference(
    hidden_states: torch.Tensor,
    gate_weight: torch.Tensor,
    routing_probs: torch.Tensor,
    selected_experts: torch.Tensor,
    routing_weights_sum: torch.Tensor,
    grad_routing_weights: torch.Tensor,
    grad_expert_mask: torch.Tensor,
    grad_router_logits: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """grad_hidden_states [NUM_TOKENS, HIDDEN_SIZE] and grad_gate_weight [NUM_EXPERTS, HIDDEN_SIZE].

    Both in the dtype of hidden_states; up to the gradient of the logits all is in the dtype of routing_probs.
    """
    compute = routing_probs.dtype
    # weights = selected probabilities / their sum
    grad_weights = grad_routing_weights.to(compute)
    weights = routing_probs.gather(1, selected_experts)
    through_sum = (grad_weights * weights / routing_weights_sum).sum(dim=1, keepdim=True)
    grad_selected = (grad_weights - through_sum) / routing_weights_sum
    # of the mask's gradient only [selected_experts[t, k], k, t] reaches a probability
    tokens, slots = (torch.arange(n, device=selected_experts.device) for n in selected_experts.shape)
    mask = grad_expert_mask.permute(2, 1, 0).to(compute)[tokens[:, None], slots, selected_experts]
    grad_probs = torch.zeros_like(routing_probs).scatter(1, selected_experts, grad_selected + mask)
    # despite its name a gradient of the probabilities: it passes through the softmax as well
    grad_probs = grad_probs + grad_router_logits.to(compute)
    dot = (grad_probs * routing_probs).sum(dim=1, keepdim=True)
    grad_logits = (routing_probs * (grad_probs - dot)).to(hidden_states.dtype)
    return grad_logits @ gate_weight, grad_logits.t() @ hidden_states
