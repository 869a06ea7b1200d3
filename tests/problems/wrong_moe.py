"""Wrong kernels of the family MoE: the accuracy rule must reject every pNN_*(*inputs) on random draws.

Those named edge_pNN_<edge>_<mistake> pass random draws and must fail the edge draw of that name.
"""

import torch
from torch.nn.functional import linear, silu, softmax


def _pairs(selected, experts, limit=None):
    """(expert, tokens, slots) of each expert; with a limit the first of them only."""
    for i in range(experts):
        token, slot = (selected == i).nonzero(as_tuple=True)
        yield i, token[:limit], slot[:limit]


def _four_times_the_mean(pairs, experts):
    return 4 * pairs // experts


def _grouped(biased, group=lambda b: b.topk(2).values.sum(-1), limited=True, fill=-1e30):
    grouped = biased.view(len(biased), 8, -1)
    kept = torch.zeros(grouped.shape[:2], dtype=torch.bool).scatter(1, group(grouped).topk(4).indices, True)
    return grouped.masked_fill(~kept[..., None] & limited, fill).view(biased.shape).topk(8).indices


def _p44(
    logits, bias, x, xs, w1, s1, w2, s2, *, select=None, weigh=None, scale=None, offset=None, swap=False,
    capped=False, factor=2.5, select_by=None, only=None,
):  # fmt: skip
    def blocks(s):
        return s.repeat_interleave(128, -2).repeat_interleave(128, -1)

    s, local = torch.sigmoid(logits), len(w1)
    selected = (select or _grouped)(s + bias.float() if select_by is None else select_by(s, bias.float()))
    w = (s if weigh is None else weigh(s, bias.float())).gather(1, selected)
    here = (selected >= local) & (selected < 2 * local)
    w = w / ((w * here).sum(1, keepdim=True) + 1e-20 if only else w.sum(1, keepdim=True)) * factor
    xs = xs.t() if scale is None else scale(xs)
    x = x.float() * xs.repeat_interleave(128, 1)
    out = torch.zeros_like(x)
    limit = _four_times_the_mean(selected.numel(), logits.shape[1]) if capped else None
    selected = selected - (local if offset is None else offset)
    for i, token, slot in _pairs(selected, local, limit):
        up, gate = (x[token] @ (w1[i].float() * blocks(s1[i])).t()).chunk(2, 1)
        up, gate = (gate, up) if swap else (up, gate)
        y = (silu(gate) * up) @ (w2[i].float() * blocks(s2[i])).t()
        out.index_add_(0, token, y * w[token, slot, None])
    return out.bfloat16()


def p44_no_bias(*inputs):
    return _p44(*inputs, select_by=lambda s, bias: s)


def p44_bias_in_the_weights(*inputs):
    return _p44(*inputs, weigh=lambda s, bias: s + bias)


def p44_uniform_weights(*inputs):
    return _p44(*inputs, weigh=lambda s, bias: torch.ones_like(s))


def p44_weights_of_local_experts_normalised(*inputs):
    return _p44(*inputs, only="local")


def p44_group_score_of_the_best_alone(*inputs):
    return _p44(*inputs, select=lambda b: _grouped(b, lambda g: g.amax(-1)))


def p44_no_group_limit(*inputs):
    return _p44(*inputs, select=lambda b: _grouped(b, limited=False))


def p44_no_activation_scale(*inputs):
    return _p44(*inputs, scale=lambda s: torch.ones_like(s).t())


def p44_activation_scale_read_token_first(*inputs):
    return _p44(*inputs, scale=lambda s: s.reshape(s.shape[1], s.shape[0]))


def p44_up_and_gate_swapped(*inputs):
    return _p44(*inputs, swap=True)


def p44_first_rank(*inputs):
    return _p44(*inputs, offset=0)


def p44_no_scaling_factor(*inputs):
    return _p44(*inputs, factor=1.0)


def edge_p44_crowded_fixed_capacity(*inputs):
    return _p44(*inputs, capped=True)


def edge_p44_negative_bias_zero_fill(*inputs):
    return _p44(*inputs, select=lambda b: _grouped(b, fill=0.0))


def _p45(x, selected, weights, gate, up, down, *, more=0, factor=1.25, last=False, renormalise=False):
    (tokens, slots), experts = selected.shape, len(gate)
    capacity = max(int(tokens * slots / experts * factor) + more, 1)
    w, kept = weights.float(), torch.zeros(selected.shape, dtype=torch.bool)
    for _, token, slot in _pairs(selected, experts):
        part = slice(-capacity, None) if last else slice(capacity)
        kept[token[part], slot[part]] = True
    if renormalise:
        w = w / (w * kept).sum(1, keepdim=True).clamp(min=1e-6)
    out = torch.zeros_like(x)
    for i, token, slot in _pairs(selected.masked_fill(~kept, -1), experts):
        h = x[token]
        y = (silu(h @ gate[i]) * (h @ up[i])) @ down[i]
        out.index_add_(0, token, (y * w[token, slot, None]).bfloat16())
    return out


def p45_no_capacity(*inputs):
    return _p45(*inputs, factor=1e6)


def p45_capacity_one_more(*inputs):
    return _p45(*inputs, more=1)


def p45_capacity_one_less(*inputs):
    return _p45(*inputs, more=-1)


def p45_capacity_factor_one(*inputs):
    return _p45(*inputs, factor=1.0)


def p45_last_assignments_kept(*inputs):
    return _p45(*inputs, last=True)


def p45_kept_weights_renormalised(*inputs):
    return _p45(*inputs, renormalise=True)


def p45_no_routing_weights(x, selected, weights, *others):
    return _p45(x, selected, torch.ones_like(weights), *others)


def _p46(x, gate, probs, selected, total, grad, mask, direct, *, quotient=1, dot=1, masked=1, before=1, after=0):
    p, g = probs.gather(1, selected), grad.float()
    token, slot = (torch.arange(n) for n in selected.shape)
    given = (g - quotient * (g * p / total).sum(1, keepdim=True)) / total
    given = given + masked * mask.float()[selected, slot, token[:, None]]
    full = torch.zeros_like(probs).scatter(1, selected, given) + before * direct.float()
    logits = (probs * (full - dot * (full * probs).sum(1, keepdim=True)) + after * direct.float()).bfloat16()
    return logits @ gate, logits.t() @ x


def p46_no_quotient_term(*inputs):
    return _p46(*inputs, quotient=0)


def p46_no_softmax_dot(*inputs):
    return _p46(*inputs, dot=0)


def p46_no_mask_path(*inputs):
    return _p46(*inputs, masked=0)


def p46_no_direct_path(*inputs):
    return _p46(*inputs, before=0)


def p46_direct_path_after_the_softmax(*inputs):
    return _p46(*inputs, before=0, after=1)


def p46_second_output_zero(*inputs):
    first, second = _p46(*inputs)
    return first, torch.zeros_like(second)


def _experts(x, selected, weights, gate, up, down, limit=None):
    out = torch.zeros_like(x)
    for i, token, slot in _pairs(selected, len(gate), limit):
        h = x[token]
        h = linear(silu(linear(h, gate[i])) * linear(h, up[i]), down[i])
        out.index_add_(0, token, h * weights[token, slot, None].to(x.dtype))
    return out


def _p47(
    hidden, router, bias, gate, up, down, sg, su, sd, *,
    chosen=1.0, weighed=1.0, norm=lambda s: s.clamp(min=1e-10), shared=1.0, logits=lambda x: x,
):  # fmt: skip
    x = hidden.flatten(0, 1)
    raw = linear(x.float(), router)
    p = softmax(raw, 1)
    selected = (p + chosen * bias).topk(8).indices
    w = (p + weighed * bias).gather(1, selected)
    y = _experts(x, selected, w / norm(w.sum(1, keepdim=True)), gate, up, down)
    y = y + shared * linear(silu(linear(x, sg)) * linear(x, su), sd)
    return y.view(hidden.shape), logits(raw)


def p47_bias_does_not_select(*inputs):
    return _p47(*inputs, chosen=0.0)


def p47_bias_does_not_weigh(*inputs):
    return _p47(*inputs, weighed=0.0)


def p47_weights_not_normalised(*inputs):
    return _p47(*inputs, norm=torch.ones_like)


def p47_no_shared_expert(*inputs):
    return _p47(*inputs, shared=0.0)


def p47_logits_in_bfloat16(*inputs):
    return _p47(*inputs, logits=lambda x: x.bfloat16().float())


def p47_logits_after_softmax(*inputs):
    return _p47(*inputs, logits=lambda x: softmax(x, 1))


def edge_p47_negative_bias_no_norm_min(*inputs):
    return _p47(*inputs, norm=lambda s: s)


def _p48(
    hidden, router, gate, up, down, sg, su, sd, shared_gate, *,
    normalise=True, gated=True, shared=1.0, capped=False,
):  # fmt: skip
    x = hidden.flatten(0, 1)
    logits = linear(x.float(), router.float())
    w, selected = softmax(logits, 1).topk(10)
    w = w / w.sum(1, keepdim=True) if normalise else w
    y = _experts(x, selected, w, gate, up, down, _four_times_the_mean(w.numel(), len(gate)) if capped else None)
    s = linear(silu(linear(x, sg)) * linear(x, su), sd)
    s = torch.sigmoid(linear(x, shared_gate)) * s if gated else s
    return (y + shared * s).view(hidden.shape), logits.bfloat16()


def p48_weights_not_normalised(*inputs):
    return _p48(*inputs, normalise=False)


def p48_shared_expert_without_its_gate(*inputs):
    return _p48(*inputs, gated=False)


def p48_no_shared_expert(*inputs):
    return _p48(*inputs, shared=0.0)


def p48_logits_are_probabilities(*inputs):
    output, logits = _p48(*inputs)
    return output, softmax(logits, 1)


def edge_p48_skewed_fixed_capacity(*inputs):
    return _p48(*inputs, capped=True)


def _p49(
    x, weight, bias, *, choose=_grouped, bias_scale=1.0, weigh=lambda s, bias: s, factor=2.5, logit_dtype=None
):
    s = torch.sigmoid(linear(x.float(), weight.float()).to(logit_dtype or torch.float32).float())
    selected = choose(s + bias_scale * bias.float())
    w = weigh(s, bias.float()).gather(1, selected)
    return selected, w / (w.sum(1, keepdim=True) + 1e-20) * factor


def p49_no_bias(*inputs):
    return _p49(*inputs, bias_scale=0.0)


def p49_group_score_of_the_best_alone(*inputs):
    return _p49(*inputs, choose=lambda b: _grouped(b, lambda g: g.amax(-1)))


def p49_no_group_limit(*inputs):
    return _p49(*inputs, choose=lambda b: _grouped(b, limited=False))


def p49_bias_in_the_weights(*inputs):
    return _p49(*inputs, weigh=lambda s, bias: s + bias)


def p49_no_scaling_factor(*inputs):
    return _p49(*inputs, factor=1.0)


def p49_logits_in_bfloat16(*inputs):
    return _p49(*inputs, logit_dtype=torch.bfloat16)


def p49_in_order_of_the_index(*inputs):
    return _p49(*inputs, choose=lambda b: _grouped(b).sort(1).values)


def edge_p49_negative_bias_zero_fill(*inputs):
    return _p49(*inputs, choose=lambda b: _grouped(b, fill=0.0))


def _p50(
    grad, x, selected, weights, gate, up, down, *,
    derivative=lambda g, s: s * (1 + g * (1 - s)), capped=False, tf32=False, topk_scale=0.0, down_scale=1.0,
    through_up=1.0,
):  # fmt: skip
    results = [torch.zeros_like(v) for v in (x, weights, gate, up, down)]
    limit = _four_times_the_mean(selected.numel(), len(gate)) if capped else None
    for i, token, slot in _pairs(selected, len(gate), limit):
        h, w = x[token], weights[token, slot, None]
        h = (h.view(torch.int32) & ~0x1FFF).view(torch.float32) if tf32 else h
        g, u = linear(h, gate[i]), linear(h, up[i])
        s = torch.sigmoid(g)
        a = g * s
        results[1][token, slot] = (grad[token] * linear(a * u, down[i])).sum(1) * w[:, 0] ** topk_scale
        gy = grad[token] * w
        results[4][i] = (grad[token] * w**down_scale).t() @ (a * u)
        gi = gy @ down[i]
        df, du = gi * u * derivative(g, s), gi * a
        results[2][i], results[3][i] = df.t() @ h, du.t() @ h
        results[0].index_add_(0, token, df @ gate[i] + through_up * du @ up[i])
    return tuple(results)


def p50_sigmoid_as_the_derivative_of_silu(*inputs):
    return _p50(*inputs, derivative=lambda g, s: s)


def p50_inputs_in_tf32(*inputs):
    return _p50(*inputs, tf32=True)


def p50_weighted_grad_of_weights(*inputs):
    return _p50(*inputs, topk_scale=1.0)


def p50_grad_down_not_weighted(*inputs):
    return _p50(*inputs, down_scale=0.0)


def p50_hidden_through_the_gate_alone(*inputs):
    return _p50(*inputs, through_up=0.0)


def edge_p50_skewed_fixed_capacity(*inputs):
    return _p50(*inputs, capped=True)


def _p51(
    x, selected, weights, gate_up, gate_up_bias, down, down_bias, *,
    split=lambda z: (z[:, 0::2], z[:, 1::2]), least=-7.0, most=7.0, most_gate=7.0, one=1.0, alpha=1.702,
    bias=1.0, last_bias=1.0, weigh=None, capped=False, clipped=False,
):  # fmt: skip
    experts, out = len(down), torch.zeros_like(x)
    limit = _four_times_the_mean(selected.numel(), experts) if capped else None
    for i, token, slot in _pairs(selected.clamp(max=experts - 1) if clipped else selected, experts, limit):
        gate, up = split(x[token] @ gate_up[i] + bias * gate_up_bias[i])
        gate, up = gate.clamp(max=most_gate), up.clamp(least, most)
        y = ((up + one) * gate * torch.sigmoid(alpha * gate)) @ down[i]
        w = weights[token, i] if weigh is None else weigh(weights, selected)[token, slot]
        out.index_add_(0, token, y * w[:, None] + last_bias * down_bias[i] * w[:, None])
    return out


def p51_halves_instead_of_interleaved(*inputs):
    return _p51(*inputs, split=lambda z: z.chunk(2, 1))


def p51_gate_and_up_swapped(*inputs):
    return _p51(*inputs, split=lambda z: (z[:, 1::2], z[:, 0::2]))


def p51_no_clamp_of_gate(*inputs):
    return _p51(*inputs, most_gate=torch.inf)


def p51_no_clamp_of_up(*inputs):
    return _p51(*inputs, least=-torch.inf, most=torch.inf)


def p51_upper_clamp_of_up_alone(*inputs):
    return _p51(*inputs, least=-torch.inf)


def p51_up_without_plus_one(*inputs):
    return _p51(*inputs, one=0.0)


def p51_plain_silu(*inputs):
    return _p51(*inputs, alpha=1.0)


def p51_no_gate_up_bias(*inputs):
    return _p51(*inputs, bias=0.0)


def p51_no_down_bias(*inputs):
    return _p51(*inputs, last_bias=0.0)


def p51_weights_renormalised(*inputs):
    def weigh(weights, selected):
        w = weights.gather(1, selected.clamp(max=weights.shape[1] - 1))
        return w / w.sum(1, keepdim=True)

    return _p51(*inputs, weigh=weigh)


def edge_p51_skewed_fixed_capacity(*inputs):
    return _p51(*inputs, capped=True)


def edge_p51_masked_index_as_the_last_expert(*inputs):
    return _p51(*inputs, clipped=True)
