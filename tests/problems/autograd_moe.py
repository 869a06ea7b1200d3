"""The backward problems of the family MoE by torch.autograd: pNN(module, inputs), inputs promoted to float64."""

import torch
from torch.nn.functional import linear, silu


def p46(module, inputs):
    """Equal to 1e-6 only: the saved probabilities are rounded to float32, so their sum is not exactly one."""
    hidden, gate, probs, selected, _, grad_weights, grad_mask, grad_direct = inputs
    hidden, gate = hidden.detach().requires_grad_(), gate.detach().requires_grad_()
    logits = linear(hidden, gate)
    # the saved probabilities belong to other logits than these: move the value, keep the gradient
    p = torch.softmax(logits + (probs.log() - logits).detach(), dim=1)
    chosen = p.gather(1, selected)
    mask = torch.nn.functional.one_hot(selected, len(gate)).to(p.dtype) * p[:, None]  # [tokens, slots, experts]
    loss = (chosen / chosen.sum(1, keepdim=True) * grad_weights).sum()
    loss = loss + (mask.permute(2, 1, 0) * grad_mask).sum() + (p * grad_direct).sum()
    return torch.autograd.grad(loss, (hidden, gate))


def p50(module, inputs):
    grad_output, hidden, selected, *weights = inputs
    hidden, weights = hidden.detach().requires_grad_(), [w.detach().requires_grad_() for w in weights]
    topk_weights, gate, up, down = weights
    rows = []
    for token, experts in enumerate(selected.tolist()):
        x = hidden[token]
        parts = [linear(silu(linear(x, gate[e])) * linear(x, up[e]), down[e]) for e in experts]
        rows.append(topk_weights[token] @ torch.stack(parts))
    return torch.autograd.grad(torch.stack(rows), (hidden, *weights), grad_output)
