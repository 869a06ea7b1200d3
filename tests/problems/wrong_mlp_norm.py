"""Wrong kernels of the family MLP & Norm: the accuracy rule must reject every pNN_*(*inputs) on random draws.

Those named edge_pNN_<edge>_<mistake> must fail the edge draw of that name; random draws let them pass (but p41's
on the small workload, where they reject it narrowly).
"""

import torch
from torch.nn.functional import gelu, linear, rms_norm, silu


def _tf32(x):  # truncated to the 10 fraction bits of TF32
    return (x.view(torch.int32) & -(1 << 13)).view(torch.float32)


def _tanh_of_exp(f):  # of GELU's argument; exp overflows where it is above 44
    e = torch.exp(2 * 0.7978845608028654 * (f + 0.044715 * f**3))
    return (e - 1) / (e + 1)


def _sigmoid_of_exp(x):  # NaN where exp overflows
    return torch.exp(x) / (1 + torch.exp(x))


def _p27(
    hidden,
    grid_thw,
    ln_weight,
    ln_bias,
    w1,
    b1,
    w2,
    b2,
    *,
    eps=1e-6,
    order=(0, 1, 3, 2, 4, 5),
    norm=None,
    shuffle=True,
):
    x = hidden.float()
    if norm is None:
        y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + eps).sqrt()
    else:
        y = norm(x)
    y = (y * ln_weight.float() + ln_bias.float()).bfloat16()
    rows, start = [], 0
    for t, h, w in grid_thw.tolist():
        part = y[start : start + t * h * w].view(t, h // 2, 2, w // 2, 2, -1)
        rows.append((part.permute(order) if shuffle else part).reshape(t * h * w // 4, -1))
        start += t * h * w
    return linear(gelu(linear(torch.cat(rows), w1, b1)), w2, b2)


def p27_no_mean_subtraction(*inputs):
    return _p27(*inputs, norm=lambda x: rms_norm(x, x.shape[-1:], None, 1e-6))


def p27_constant_variance(*inputs):
    return _p27(*inputs, norm=lambda x: (x - x.mean(-1, keepdim=True)) / 1.04)


def p27_columns_before_rows(*inputs):
    return _p27(*inputs, order=(0, 1, 3, 4, 2, 5))


def p27_no_shuffle(*inputs):
    return _p27(*inputs, shuffle=False)


def p27_height_and_width_swapped(hidden, grid_thw, *others):
    return _p27(hidden, grid_thw[:, [0, 2, 1]], *others)


def p27_no_norm_weight(hidden, grid_thw, ln_weight, *others):
    return _p27(hidden, grid_thw, torch.ones_like(ln_weight), *others)


def p27_no_norm_bias(hidden, grid_thw, ln_weight, ln_bias, *others):
    return _p27(hidden, grid_thw, ln_weight, torch.zeros_like(ln_bias), *others)


def p27_no_first_bias(hidden, grid_thw, ln_weight, ln_bias, w1, b1, *others):
    return _p27(hidden, grid_thw, ln_weight, ln_bias, w1, torch.zeros_like(b1), *others)


def edge_p27_flat_patches_no_eps(*inputs):
    return _p27(*inputs, eps=0.0)


def p29_exact_gelu(x, w1, b1, w2, b2):
    return linear(gelu(linear(x, w1, b1)), w2, b2)


def p29_no_first_bias(x, w1, b1, w2, b2):
    return linear(gelu(linear(x, w1), approximate="tanh"), w2, b2)


def p29_no_second_bias(x, w1, b1, w2, b2):
    return linear(gelu(linear(x, w1, b1), approximate="tanh"), w2)


def p29_operands_of_10_bits(x, w1, b1, w2, b2):
    return linear(_tf32(gelu(linear(_tf32(x), _tf32(w1), b1), approximate="tanh")), _tf32(w2), b2)


def edge_p29_large_preactivations_tanh_of_exp(x, w1, b1, w2, b2):
    f = linear(x, w1, b1)
    return linear(0.5 * f * (1 + _tanh_of_exp(f)), w2, b2)


def _p30(x, w1, b1, grn_weight, grn_bias, w2, b2, *, approximate="none", dims=(1, 2), channels=-1, residual=1.0):
    a = gelu(linear(x, w1, b1), approximate=approximate)
    norm = torch.linalg.vector_norm(a, dim=dims, keepdim=True)
    if len(dims) == 3:
        norm = norm / len(x) ** 0.5
    a_hat = a * norm / (norm.mean(channels, keepdim=True) + 1e-6)
    return linear(grn_weight * a_hat + grn_bias + residual * a, w2, b2)


def p30_tanh_gelu(*inputs):
    return _p30(*inputs, approximate="tanh")


def p30_norm_over_the_batch(*inputs):
    return _p30(*inputs, dims=(0, 1, 2))


def p30_mean_over_images(*inputs):
    return _p30(*inputs, channels=(0, -1))


def p30_norm_over_rows_only(*inputs):
    return _p30(*inputs, dims=(1,))


def p30_no_residual(*inputs):
    return _p30(*inputs, residual=0.0)


def p30_no_response(x, w1, b1, grn_weight, *others):
    return _p30(x, w1, b1, torch.zeros_like(grn_weight), *others)


def _p31(x, weight, bias, *, eps=1e-5, correction=0, mean=True, interleaved=False):
    groups = x.view(len(x), -1, 32, *x.shape[2:]).transpose(1, 2) if interleaved else x.view(len(x), 32, -1)
    flat = groups.reshape(len(x), 32, -1)
    y = (flat - flat.mean(-1, keepdim=True) * mean) / (
        flat.var(-1, correction=correction, keepdim=True) + eps
    ).sqrt()
    y = y.view(groups.shape)
    y = (y.transpose(1, 2) if interleaved else y).reshape(x.shape)
    return y * weight[:, None, None] + bias[:, None, None]


def p31_unbiased_variance(*inputs):
    return _p31(*inputs, correction=1)


def p31_no_mean_subtraction(*inputs):
    return _p31(*inputs, mean=False)


def p31_no_eps(*inputs):
    return _p31(*inputs, eps=0.0)


def p31_strided_groups(*inputs):
    return _p31(*inputs, interleaved=True)


def p31_no_statistics(x, weight, bias):
    return x * weight[:, None, None] + bias[:, None, None]


def p31_no_affine(x, weight, bias):
    return _p31(x, torch.ones_like(weight), torch.zeros_like(bias))


def edge_p31_offset_groups_variance_in_one_pass(x, weight, bias):
    flat = x.view(len(x), 32, -1)
    mean = flat.mean(-1, keepdim=True)
    y = (flat - mean) * torch.rsqrt(flat.square().mean(-1, keepdim=True) - mean.square() + 1e-5)
    return y.view(x.shape) * weight[:, None, None] + bias[:, None, None]


def p32_halves_swapped(x, gate_up, down):
    up, gate = linear(x, gate_up).chunk(2, dim=-1)
    return linear(up * silu(gate), down)


def p32_gate_and_up_interleaved(x, gate_up, down):
    both = linear(x, gate_up)
    return linear(both[..., 1::2] * silu(both[..., ::2]), down)


def p32_gelu_gate(x, gate_up, down):
    gate, up = linear(x, gate_up).chunk(2, dim=-1)
    return linear(up * gelu(gate), down)


def p32_operands_of_10_bits(x, gate_up, down):
    gate, up = linear(_tf32(x), _tf32(gate_up)).chunk(2, dim=-1)
    return linear(_tf32(up * silu(gate)), _tf32(down))


def edge_p32_large_gates_sigmoid_of_exp(x, gate_up, down):
    gate, up = linear(x, gate_up).chunk(2, dim=-1)
    return linear(up * gate * _sigmoid_of_exp(gate), down)


def _p33(x, residual, weight, gate_proj, up_proj, down_proj, *, statistic=None, eps=1e-5, added=0.0):
    total = residual + x
    s = total.float()
    inverse = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps) if statistic is None else statistic
    z = (s * inverse * weight.float()).bfloat16()
    return linear(silu(linear(z, gate_proj)) * linear(z, up_proj), down_proj) + added * total


def p33_constant_statistic(*inputs):
    return _p33(*inputs, statistic=0.68)  # of rows of an average scale


def p33_no_residual(x, residual, *others):
    return _p33(x, torch.zeros_like(residual), *others)


def p33_no_norm_weight(x, residual, weight, *others):
    return _p33(x, residual, torch.ones_like(weight), *others)


def p33_gate_and_up_swapped(x, residual, weight, gate_proj, up_proj, down_proj):
    return _p33(x, residual, weight, up_proj, gate_proj, down_proj)


def p33_residual_added_to_the_output(*inputs):
    return _p33(*inputs, added=1.0)


def edge_p33_small_sums_no_eps(*inputs):
    return _p33(*inputs, eps=0.0)


def _p34(
    grad, x, gate, up, activated, wg, wu, wd, *, slope=None, sigmoid=torch.sigmoid, gate_path=1.0, up_path=1.0
):
    product = grad @ wd
    g = gate.float()
    s = sigmoid(g)
    grad_gate = ((product * up).float() * (s * (1 + g * (1 - s)) if slope is None else slope(g))).bfloat16()
    grad_up = product * activated
    rows = x.flatten(0, 1)
    return (
        gate_path * (grad_gate @ wg) + up_path * (grad_up @ wu),
        grad_gate.flatten(0, 1).T @ rows,
        grad_up.flatten(0, 1).T @ rows,
        grad.flatten(0, 1).T @ (activated * up).flatten(0, 1),
    )


def p34_activated_gate_recomputed(grad, x, gate, up, activated, *weights):
    return _p34(grad, x, gate, up, silu(gate), *weights)


def p34_gate_recomputed(grad, x, gate, up, activated, wg, wu, wd):
    return _p34(grad, x, linear(x, wg), up, activated, wg, wu, wd)


def p34_sigmoid_as_derivative(*inputs):
    return _p34(*inputs, slope=torch.sigmoid)


def p34_no_gate_path(*inputs):
    return _p34(*inputs, gate_path=0.0)


def p34_no_up_path(*inputs):
    return _p34(*inputs, up_path=0.0)


def edge_p34_large_gates_sigmoid_of_exp(*inputs):
    return _p34(*inputs, sigmoid=_sigmoid_of_exp)


def _gelu_slope(f, tanh=None):
    u = 0.7978845608028654 * (f + 0.044715 * f**3)
    t = torch.tanh(u) if tanh is None else tanh(f)
    return 0.5 * (1 + t) + 0.5 * f * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * f * f)


def _exact_gelu_slope(f):
    return 0.5 * (1 + torch.erf(f / 2**0.5)) + f * torch.exp(-f * f / 2) / (2 * torch.pi) ** 0.5


def _p35(
    grad,
    x,
    w1,
    f,
    a,
    w2,
    normalized,
    var,
    weight,
    *,
    slope=_gelu_slope,
    eps=1e-5,
    mean=1.0,
    projection=1.0,
    past=1.0,
):
    dn = grad * weight
    m1, m2 = dn.mean(-1, keepdim=True), (dn * normalized).mean(-1, keepdim=True)
    dr = (dn - mean * m1 - projection * normalized * m2) / (var + eps).sqrt()
    df = (dr @ w2) * slope(f)
    return (
        df @ w1 + past * dr,
        df.flatten(0, 1).T @ x.flatten(0, 1),
        df.sum((0, 1)),
        dr.flatten(0, 1).T @ a.flatten(0, 1),
        dr.sum((0, 1)),
        (grad * normalized).sum((0, 1)),
        grad.sum((0, 1)),
    )


def p35_no_mean_term(*inputs):
    return _p35(*inputs, mean=0.0)


def p35_no_projection_term(*inputs):
    return _p35(*inputs, projection=0.0)


def p35_no_residual_path(*inputs):
    return _p35(*inputs, past=0.0)


def p35_no_eps(*inputs):
    return _p35(*inputs, eps=0.0)


def p35_no_norm_weight(*inputs):
    return _p35(*inputs[:-1], torch.ones_like(inputs[-1]))


def p35_exact_gelu_derivative(*inputs):
    return _p35(*inputs, slope=_exact_gelu_slope)


def _p37(grad, x, w1, w2, f, a, *, slope=_gelu_slope):
    df = (grad @ w2) * slope(f)
    rows = grad.flatten(0, 1)
    return (
        df @ w1,
        df.flatten(0, 1).T @ x.flatten(0, 1),
        df.sum((0, 1)),
        rows.T @ a.flatten(0, 1),
        rows.sum(0),
    )


def p37_activated_recomputed(grad, x, w1, w2, f, a):
    return _p37(grad, x, w1, w2, f, gelu(f, approximate="tanh"))


def p37_intermediate_recomputed(grad, x, w1, w2, f, a):
    return _p37(grad, x, w1, w2, linear(x, w1), a)


def p37_exact_gelu_derivative(*inputs):
    return _p37(*inputs, slope=_exact_gelu_slope)


def p37_operands_of_10_bits(grad, x, w1, w2, f, a):
    return _p37(_tf32(grad), _tf32(x), _tf32(w1), _tf32(w2), f, _tf32(a))


def edge_p37_large_preactivations_tanh_of_exp(*inputs):
    return _p37(*inputs, slope=lambda f: _gelu_slope(f, _tanh_of_exp))


def _p38(grad, normalized, rstd, weight, *, projection=1.0):
    d = grad.float()
    dn = d * weight
    m = (dn * normalized).mean(-1, keepdim=True)
    dx = (rstd * (dn - projection * m * normalized)).bfloat16()
    return dx, dx.clone(), (d * normalized).sum((0, 1))


def p38_no_projection_term(*inputs):
    return _p38(*inputs, projection=0.0)


def p38_constant_rstd(grad, normalized, rstd, weight):
    return _p38(grad, normalized, torch.ones_like(rstd), weight)


def p38_no_weight(grad, normalized, rstd, weight):
    return _p38(grad, normalized, rstd, torch.ones_like(weight))


def p38_residual_without_gradient(*inputs):
    dx, other, grad_weight = _p38(*inputs)
    return dx, torch.zeros_like(other), grad_weight


def p38_weight_gradient_in_bfloat16(*inputs):
    dx, other, grad_weight = _p38(*inputs)
    return dx, other, grad_weight.bfloat16().float()


def p38_weight_gradient_of_the_weighted(grad, normalized, rstd, weight):
    dx, other, grad_weight = _p38(grad, normalized, rstd, weight)
    return dx, other, grad_weight * weight


def _p39(x, temb, w, b, w_out, b_out, *, swapped=False, mean=1.0, correction=0, activation=silu, one=1.0):
    first, second = linear(activation(temb), w, b)[:, None].chunk(2, dim=-1)
    shift, scale = (second, first) if swapped else (first, second)
    variance = x.var(-1, correction=correction, keepdim=True)
    y = (x - mean * x.mean(-1, keepdim=True)) / (variance + 1e-6).sqrt()
    return linear(y * (one + scale) + shift, w_out, b_out)


def p39_scale_before_shift(*inputs):
    return _p39(*inputs, swapped=True)


def p39_no_silu(*inputs):
    return _p39(*inputs, activation=lambda t: t)


def p39_no_mean_subtraction(*inputs):
    return _p39(*inputs, mean=0.0)


def p39_unbiased_variance(*inputs):
    return _p39(*inputs, correction=1)


def p39_scale_without_one(*inputs):
    return _p39(*inputs, one=0.0)


def p39_one_modulation_for_all_images(x, temb, *others):
    return _p39(x, temb[:1].expand_as(temb), *others)


def edge_p39_offset_rows_variance_in_one_pass(x, temb, w, b, w_out, b_out):
    shift, scale = linear(silu(temb), w, b)[:, None].chunk(2, dim=-1)
    mean = x.mean(-1, keepdim=True)
    y = (x - mean) * torch.rsqrt(x.square().mean(-1, keepdim=True) - mean.square() + 1e-6)
    return linear(y * (1 + scale) + shift, w_out, b_out)


def _p40(
    streams,
    w1,
    w2,
    *,
    target=None,
    current=None,
    bound=lambda square: square.clamp(min=1e-5).sqrt(),
    transposed=True,
):
    first, *others = streams.float()
    goal = first.square().mean(-1, keepdim=True).sqrt() if target is None else target
    total = first
    for stream, w in zip(others, (w1.float(), w2.float()), strict=True):
        p = stream @ (w.T if transposed else w)
        total = total + p * goal / (bound(p.square().mean(-1, keepdim=True)) if current is None else current)
    return (total / 3).bfloat16()


def p40_constant_target(*inputs):
    return _p40(*inputs, target=1.0)


def p40_constant_magnitude(*inputs):
    return _p40(*inputs, current=inputs[0].shape[-1] ** 0.5)


def p40_both_magnitudes_constant(*inputs):
    return _p40(*inputs, target=1.0, current=inputs[0].shape[-1] ** 0.5)


def p40_projections_not_transposed(*inputs):
    return _p40(*inputs, transposed=False)


def p40_projections_swapped(streams, w1, w2):
    return _p40(streams, w2, w1)


def p40_sum_for_mean(*inputs):
    return _p40(*inputs) * 3


def edge_p40_small_streams_no_bound(*inputs):
    return _p40(*inputs, bound=torch.sqrt)


def edge_p40_small_streams_bound_on_the_root(*inputs):
    return _p40(*inputs, bound=lambda square: square.sqrt().clamp(min=1e-5))


def edge_p40_small_streams_eps_added(*inputs):
    return _p40(*inputs, bound=lambda square: (square + 1e-5).sqrt())


def _p41(x, wq, wk, wv, q_weight, k_weight, *, eps=1e-6, dims=(-1,), value=False):
    q, k, v = (linear(x, w).unflatten(-1, (-1, len(q_weight))) for w in (wq, wk, wv))

    def norm(t):
        return t * torch.rsqrt(t.square().mean(dims, keepdim=True) + eps)

    return norm(q) * q_weight, norm(k) * k_weight, norm(v) if value else v


def p41_norm_over_all_heads(*inputs):
    return _p41(*inputs, dims=(-2, -1))


def p41_one_norm_weight(x, wq, wk, wv, q_weight, k_weight):
    return _p41(x, wq, wk, wv, q_weight, q_weight)


def p41_value_normalised(*inputs):
    return _p41(*inputs, value=True)


def p41_weight_offset_by_one(x, wq, wk, wv, q_weight, k_weight):
    return _p41(x, wq, wk, wv, 1 + q_weight, 1 + k_weight)


def p41_operands_of_10_bits(x, wq, wk, wv, q_weight, k_weight):
    return _p41(_tf32(x), _tf32(wq), _tf32(wk), _tf32(wv), q_weight, k_weight)


def edge_p41_small_tokens_no_eps(*inputs):
    return _p41(*inputs, eps=0.0)


def _p42(
    ids, x, table, e_weight, h_weight, proj, *, shift=True, last=0, hidden_first=False, statistic=None, eps=1e-6
):
    if shift:
        ids = torch.cat((ids[:, 1:], ids[:, :1] if last is None else torch.full_like(ids[:, :1], last)), dim=1)

    def norm(t, weight):
        t = t.float()
        inverse = torch.rsqrt(t.square().mean(-1, keepdim=True) + eps) if statistic is None else statistic
        return weight * (t * inverse).bfloat16()

    parts = norm(table[ids], e_weight), norm(x, h_weight)
    return linear(torch.cat(parts[::-1] if hidden_first else parts, dim=-1), proj)


def p42_last_id_wrapped(*inputs):
    return _p42(*inputs, last=None)


def p42_no_shift(*inputs):
    return _p42(*inputs, shift=False)


def p42_hidden_part_first(*inputs):
    return _p42(*inputs, hidden_first=True)


def p42_constant_statistics(*inputs):
    return _p42(*inputs, statistic=0.96)


def p42_no_norm_weights(ids, x, table, e_weight, h_weight, proj):
    return _p42(ids, x, table, torch.ones_like(e_weight), torch.ones_like(h_weight), proj)


def edge_p42_small_rows_no_eps(*inputs):
    return _p42(*inputs, eps=0.0)


def _p43(grad, ids, x, rstd, weight, *, projection=1.0, store="add", keep=None):
    d, n = grad.float(), x * rstd
    dn = d * weight.float()
    dh = (rstd * (dn - projection * (dn * n).mean(-1, keepdim=True) * n)).flatten(0, 1)
    table, flat = torch.zeros(16 * x.shape[-1], x.shape[-1]), ids.flatten()
    if store == "overwrite":
        table[flat] = dh
    else:
        seen = (flat[:, None] == flat).tril(-1).sum(1)  # earlier tokens of the same id
        kept = seen < (keep or len(flat))
        table.index_add_(0, flat[kept], dh[kept])
    return table.bfloat16(), (d * n).sum((0, 1)).bfloat16()


def p43_repeated_ids_overwrite(*inputs):
    return _p43(*inputs, store="overwrite")


def p43_no_projection_term(*inputs):
    return _p43(*inputs, projection=0.0)


def p43_no_norm_weight(grad, ids, x, rstd, weight):
    return _p43(grad, ids, x, rstd, torch.ones_like(weight))


def p43_rstd_recomputed(grad, ids, x, rstd, weight):
    return _p43(grad, ids, x, torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6), weight)


def p43_empty_table(*inputs):
    table, grad_weight = _p43(*inputs)
    return torch.zeros_like(table), grad_weight


def edge_p43_frequent_id_eight_tokens_kept(*inputs):
    return _p43(*inputs, keep=8)
