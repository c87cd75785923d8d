"""The calls random programs are made of, as templates of source.

Placeholders: `{x}` any tensor so far, `{y}` another, mostly one that broadcasts with it; `{f}`, `{i}` or `{b}` instead
of `{x}` a floating, integral or boolean one. `{d}`, `{e}` dimensions of it; `{n}` an index along `{d}`, `{w}` a length
along it; `{k}` a small count; `{a}` a Python number; `{D}` a dtype; `{S}` a size; `writer.py` writes the others.
`<a|b>` means one template with `a` and one with `b`.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Template:
    """One call. `picky`: a rounding error in an operand may change the result altogether. `rounds`: it makes one."""

    text: str
    family: str
    picky: bool = False
    rounds: bool = False

    @property
    def writes(self) -> bool:
        """Whether it changes a tensor instead of making one."""
        return self.family == "write"


_ALTERNATIVES = re.compile(r"<([^<>]*\|[^<>]*)>")


def _expanded(text: str) -> list[str]:
    found = _ALTERNATIVES.search(text)
    if found is None:
        return [text]
    head, tail = text[: found.start()], text[found.end() :]
    return [done for choice in found[1].split("|") for done in _expanded(head + choice + tail)]


def _family(family: str, table: str, picky: bool = False, rounds: bool = False) -> list[Template]:
    lines = (line.strip() for line in table.strip().splitlines())
    return [Template(text, family, picky, rounds) for line in lines for text in _expanded(line)]


# A function of one tensor, element by element.
POINTWISE = [
    *_family("pointwise", "torch.<neg|abs|clone|square|positive|conj_physical|relu>({x})"),
    *_family(
        "pointwise",
        """
        torch.<logical_not|isnan|isfinite|isinf|isposinf|isneginf|isreal|sgn|sign|signbit>({x})
        torch.<floor|ceil|round|trunc|frac|bitwise_not>({x})
        torch.<hardshrink|softshrink>({f})
        torch.round({f}, decimals=1)
        torch.nan_to_num({x}, {a}, 5, -5)
        torch.threshold({x}, 1, 2)
        torch.heaviside({x}, {y})
        torch.nn.functional.<relu6|hardtanh|leaky_relu|hardsigmoid|hardswish>({f})
        """,
        picky=True,
    ),
    *_family(
        "pointwise",
        """
        torch.<sin|cos|tanh|sigmoid|atan|erf|asinh|sinc|exp2|erfc|sinh|cosh|exp|expm1>({x})
        torch.<rsqrt|log1p|log2|log10|sqrt|log|reciprocal|lgamma|digamma|acosh|i0>({x}.abs() + 1)
        torch.special.<i0e|i1e|i1|xlog1py|erfcx|ndtr|log_ndtr|entr>({f}<|, {y}>)
        torch.<asin|acos|atanh|logit|erfinv>({x}.sigmoid())
        torch.nn.functional.<gelu|silu|elu|softplus|selu|celu|mish|logsigmoid|tanhshrink|softsign>({f})
        torch.<deg2rad|rad2deg>({x})
        torch.angle({f})
        """,
        rounds=True,
    ),
]

BINARY = [
    *_family(
        "binary",
        """
        torch.<add|sub|mul|rsub|maximum|minimum|fmax|fmin>({x}, {y})
        torch.<add|sub>({x}, {y}, alpha={a})
        {x} <+|-|*> {a}
        {a} <+|-|*> {x}
        {x} <+|-|*> {y}
        {x} * {y} + {x}
        torch.<bitwise_and|bitwise_or|bitwise_xor>({x}, {y})
        {i} <&||^> {k}
        torch.addcmul({x}, {y}, {y}, value={a})
        torch.<mul|add>({x}, torch.tensor({a}))
        torch.<mul|add|sub>({x}, torch.tensor({a}, device=device))
        torch.<clamp|clip>({x}, {a}, 3)
        torch.clamp({x}, min={a})
        torch.clamp({x}, {y}, {y})
        torch.clamp_min({x}, {y})
        torch._foreach_<add|mul|sub>([{x}, {y}], {a})[<0|1>]
        torch._foreach_<add|mul|sub|maximum|clamp_min>([{x}, {y}], [{y}, {x}])[<0|1>]
        torch._foreach_<neg|abs|sign>([{x}, {y}])[<0|1>]
        torch.float_power({x}, <2|{k}>)
        torch.complex({f}, {f})
        """,
    ),
    *_family(
        "binary",
        """
        torch.<eq|ne|lt|le|gt|ge>({x}, <{y}|{a}>)
        {x} == {y}
        {x} != {y}
        {x} >= {y}
        torch.<logical_and|logical_or|logical_xor>({x}, {y})
        torch.<remainder|fmod|floor_divide>({x}, <2|3|-2|1.5>)
        torch.<remainder|fmod|floor_divide>({x}, {y}.abs() + 1)
        torch.<gcd|lcm>({i}, {i})
        {i} << {k}
        {i} >> {k}
        {x} // 2
        {a} % ({x}.abs() + 1)
        torch.div({x}, <2|{y}.abs() + 1>, rounding_mode=<'floor'|'trunc'>)
        torch.copysign({x}, <{y}|{a}>)
        torch.isclose({x}, {y})
        torch.equal({x}, {y}) * {x}
        torch.allclose({x}, {x}) * {x}
        torch.nextafter({x}, {y})
        """,
        picky=True,
    ),
    *_family(
        "binary",
        """
        {x} ** <2|3|1|0|2.0|0.5>
        torch.pow({x}, {y})
        {k} ** {x}
        torch.<div|true_divide|atan2|hypot|logaddexp|logaddexp2>({x}, {y}.abs() + 1)
        {x} / <2|{y}|{a}>
        {a} / ({x}.abs() + 1)
        torch.addcdiv({x}, {y}, {y}.abs() + 1)
        torch.lerp({x}, {y}, <0.5|{x}>)
        torch.xlogy({x}, {y}.abs() + 1)
        torch.ldexp({x}, {k})
        torch._foreach_<sqrt|exp|tanh|reciprocal>([{x}.abs() + 1, {y}.abs() + 1])[<0|1>]
        torch._foreach_lerp([{x}], [{y}], 0.5)[0]
        torch.polar({f}, {f})
        """,
        rounds=True,
    ),
]

REDUCTION = [
    *_family(
        "reduction",
        """
        torch.<sum|nansum|prod>({x})
        torch.<sum|amax|amin|nansum|prod>({x}, {d}<|, keepdim=True>)
        torch.<sum|amax|amin>({x}, {dims}<|, keepdim=True>)
        torch.sum({x}, {d}, dtype=torch.{D})
        torch.<cumsum|cumprod>({x}, {d})
        torch.cumsum({x}, {d}, dtype=torch.{D})
        torch.<max|min>({x})
        torch.<max|min>({x}, {d}<|, keepdim=True>).values
        torch.aminmax({x})[<0|1>]
        torch.aminmax({x}, dim={d})[<0|1>]
        torch.<cummax|cummin>({x}, {d}).values
        torch.trace({x})
        torch.diff({x}, dim={d})
        torch.<sort|msort>({x})<.values|>
        """,
    ),
    *_family(
        "reduction",
        """
        torch.<any|all|count_nonzero>({x})
        torch.<any|all>({x}, {d}<|, keepdim=True>)
        torch.<any|all|count_nonzero>({x}, {dims})
        torch.<argmax|argmin>({x})
        torch.<argmax|argmin>({x}, {d}<|, keepdim=True>)
        torch.sort({x}, dim={d}, stable=True<|, descending=True>).<indices|values>
        torch.argsort({x}, dim={d}, descending=<True|False>, stable=True)
        torch.topk({x}, {w}, dim={d}<|, largest=False>).values
        torch.kthvalue({x}, {w}, dim={d}).values
        torch.<median|nanmedian>({x})
        torch.<median|nanmedian|mode>({x}, {d}).values
        torch.<unique|unique_consecutive>({x})
        torch.unique({x}, return_inverse=True, return_counts=True)[<1|2>]
        torch.unique({x}, dim={d})
        torch.<nonzero|argwhere>({x})
        torch.bincount({x}.flatten().abs().clamp(max=9))
        torch.histc({f}, 4, -2, 2)
        torch.<cummax|cummin>({x}, {d}).indices
        torch.quantile({f}, 0.5<|, dim={d}>)
        """,
        picky=True,
    ),
    *_family(
        "reduction",
        """
        torch.<mean|std|var|norm|nanmean>({x})
        torch.<mean|std|var|nanmean>({x}, {d}<|, keepdim=True>)
        torch.<mean|logsumexp|std|var>({x}, {dims})
        torch.<var|std>({x}, {d}, correction=<0|2>)
        torch.mean({x}, {d}, dtype=torch.{D})
        torch.norm({x}, <1|2|inf>, dim={d})
        torch.linalg.vector_norm({x}, <0|1|2|3|inf|-inf>)
        torch.linalg.vector_norm({x}, 2, {d}, <True|False>)
        torch.logsumexp({x}, {d})
        torch.logcumsumexp({x}, {d})
        torch.<std_mean|var_mean>({x}, {d})[<0|1>]
        torch.dist({x}, {y}, <1|2>)
        torch.<trapezoid|cumulative_trapezoid>({x}, dim={d})
        torch.<cov|corrcoef>({x})
        """,
        rounds=True,
    ),
]

VIEW = _family(
    "view",
    """
    {x}.<transpose|swapaxes>({d}, {e})
    {x}.transpose({d}, {e})
    {x}.permute({order})
    {x}.movedim({d}, {e})
    {x}.<flatten|ravel|squeeze|detach|t|adjoint|alias_copy>()
    {x}.<flatten|squeeze|detach>()
    {x}.<mT|mH|T|H|real|imag|data>
    {x}.<mT|data>
    {x}.<view|reshape>(-1)
    {x}.<view|reshape>({shape})
    {x}.unflatten({d}, (<-1, 1|1, -1>))
    {x}.unsqueeze({u})
    {x}.unsqueeze({u})
    {x}.squeeze({d})
    {x}.narrow_copy({d}, 0, 1)
    {x}.select({d}, {n})
    {x}.narrow({d}, {n}, 1)
    {x}.narrow({d}, 0, {w})
    {x}[{index}]
    {x}[{index}]
    {x}[{index}]
    {x}.expand({expanded})
    {x}.expand({expanded})
    {x}.broadcast_to({expanded})
    {x}.unfold({d}, {w}, {step})
    {x}.unfold({d}, {w}, {step})
    {x}.diagonal({offset}, {d}, {e})
    {x}.as_strided({strided})
    {x}.as_strided({strided})
    {x}.as_strided({strided})
    {x}.<chunk|tensor_split>(2, {d})[-1]
    {x}.split({w}, {d})[<0|-1>]
    {x}.unbind({d})[{n}]
    torch.view_as_<real|complex>({x})
    {x}.<conj|resolve_conj|resolve_neg>()
    {x}.conj().imag
    {x}.view(torch.{D})
    {x}.view(torch.{D})
    {x}.view_as({y})
    {x}.expand_as({y})
    torch.atleast_<1|2|3>d({x})
    {x}.<view_copy|expand_copy>({shape})
    {x}.as_strided_copy({strided})
    torch.broadcast_tensors({x}, {y})[<0|1>]
    {x}.contiguous()
    """,
)

MOVING = [
    *_family(
        "moving",
        """
        torch.<cat|stack>([{x}, {x}], {d})
        torch.cat([{x}, {y}], {d})
        torch.cat([{x}, {y}, {x}.mT], {d})
        torch.<hstack|vstack|dstack|column_stack>([{x}, {y}])
        {x}.flip({d})
        {x}.flip({dims})
        torch.<fliplr|flipud|rot90|tril|triu|diag|diag_embed|block_diag>({x})
        {x}.roll(1, {d})
        torch.roll({x}, {k})
        torch.repeat_interleave({x}, 2, {d})
        torch.repeat_interleave({x}, {counts}, {d})
        torch.tile({x}, (2,))
        {x}.repeat({ones})
        {x}.index_select({d}, {rows})
        {x}[{rows}]
        {x}[{rows}, None]
        {x}[..., {rows}]
        {x}[None, {rows}]
        torch.take({x}, {places})
        torch.<tril|triu>({x}, <1|-1>)
        torch.nn.functional.pad({x}, <(1, 2), value=3|(-1, 1)|(0, 0, 1, 1)>)
        torch.nn.functional.pad({x}, (1, 1), mode='<circular|replicate|reflect>')
        torch.gather({x}, {d}, torch.zeros_like({x}, dtype=torch.int64))
        torch.take_along_dim({x}, torch.zeros_like({x}, dtype=torch.int64), {d})
        torch.gather({x}, {d}, {indices})
        torch.scatter({x}, {d}, {indices}, {a})
        torch.scatter_add({x}, {d}, torch.zeros_like({x}, dtype=torch.int64), {x})
        torch.scatter_reduce({x}, {d}, {indices}, {x}, '<sum|amax|amin|prod|mean>', include_self=<True|False>)
        torch.index_<add|copy>({x}, {d}, torch.tensor([0], device=device), {x}.narrow({d}, 0, 1))
        torch.index_add({x}, {d}, {rows}, {x}.index_select({d}, {rows}), alpha=2)
        torch.index_fill({x}, {d}, {rows}, {a})
        torch.index_put({x}, ({rows},), torch.tensor({a}, device=device, dtype={x}.dtype), accumulate=<True|False>)
        torch.masked_fill({x}, {b}, {a})
        torch.masked_scatter({x}, {b}, {x})
        torch.where({b}, {x}, <{y}|{a}>)
        torch.meshgrid({x}, {y}, indexing='ij')[<0|1>]
        torch.select_scatter({x}, {x}.select({d}, 0), {d}, {n})
        torch.slice_scatter({x}, {x}.narrow({d}, 0, 1), {d}, 0, 1)
        torch.diagonal_scatter({x}, {x}.diagonal())
        torch.<zeros_like|ones_like>({x})
        torch.full_like({x}, {a}<|, dtype=torch.{D}>)
        {x}.new_<zeros|ones>({S}<|, dtype=torch.{D}>)
        {x}.new_full({S}, {a})
        {x}.clone(memory_format=<torch.contiguous_format|torch.preserve_format>)
        torch.<arange|linspace>(0, 4, <2|3>, device=device)
        torch.combinations({x})
        torch.cartesian_prod({x}, {y})
        torch.triu_indices(3, {k}, device=device)
        torch.vander({x}, 3)
        torch.tensor_split({x}, [1], {d})[<0|1>] + 1
        torch.randint(2, 3, {S}, device=device)
        torch.rand({S}, device=device).mul(0.5).floor()
        torch.nn.functional.dropout({f}, 0.0)
        torch.nn.functional.one_hot({i}.abs().remainder(3), 3)
        torch.randperm(1, device=device)
        """,
    ),
    *_family(
        "moving",
        """
        torch.where({x} > {a}, {x}, {y})
        torch.masked_fill({x}, {x} == 1, 7)
        {x}[{x} > 0]
        {x}[{b}]
        torch.masked_select({x}, {b})
        torch.<isin|searchsorted|bucketize>({x}, torch.tensor([-1, 0, 2], device=device))
        torch.searchsorted(torch.tensor([-1, 0, 2], device=device), {x}<|, right=True>)
        """,
        picky=True,
    ),
]

PRODUCT = _family(
    "product",
    """
    {x} @ {y}
    {x} @ {x}.mT
    torch.<outer|dot|inner>({x}.flatten(), {x}.flatten())
    torch.<mm|bmm|matmul|inner|kron>({x}, {y})
    torch.einsum('i...,i...->...', {x}, {x})
    torch.einsum('...i,...j->...ij', {x}, {y})
    torch.addmm({y}, {x}, {x}.mT<|, beta={a}, alpha={a}>)
    torch.<mv|addmv>({x}, <{y}|{x}[..., 0], {x}[0]>)
    torch.baddbmm({y}, {x}, {x}.mT)
    torch.linalg.vecdot({x}, {x})
    torch.nn.functional.linear({x}, {y}<|, {y}[..., 0]>)
    torch.tensordot({x}, {x}, {k})
    torch.chain_matmul({x}, {x}.mT)
    torch.linalg.matrix_power({x} @ {x}.mT, {k})
    torch.cross({x}, {x}.flip(0), dim={d})
    torch.cdist({f}, {f})
    """,
)

NETWORK = _family(
    "network",
    """
    torch.<softmax|log_softmax>({x}, {d})
    torch.softmax({x}, {d}, dtype=torch.float64)
    torch.nn.functional.layer_norm({f}, {f}.shape[-1:])
    torch.nn.functional.rms_norm({f}, {f}.shape[-1:])
    torch.nn.functional.group_norm({f}, 1)
    torch.nn.functional.instance_norm({f})
    torch.nn.functional.batch_norm({f}, None, None, training=True)
    torch.nn.functional.normalize({f}, dim={d})
    torch.nn.functional.<mse|l1|smooth_l1|huber>_loss({f}, {f} * 2<|, reduction='none'|, reduction='sum'>)
    torch.nn.functional.binary_cross_entropy_with_logits({f}, {f}.sigmoid().detach())
    torch.nn.functional.cross_entropy({f}, torch.zeros({f}.shape[0], dtype=torch.int64, device=device))
    torch.nn.functional.kl_div({f}.log_softmax(-1), {f}.softmax(-1), reduction='batchmean')
    torch.nn.functional.glu(torch.cat([{f}, {f}], {d}), {d})
    torch.nn.functional.<avg_pool1d|lp_pool1d>({f}, <2|1, 1>)
    torch.nn.functional.max_pool1d({f}.contiguous(), <2|1, 1>)
    torch.nn.functional.<avg_pool2d|max_pool2d>({f}, <2|2, 1>)
    torch.nn.functional.adaptive_<avg|max>_pool<1|2>d({f}, 1)
    torch.nn.functional.interpolate({f}[None, None], scale_factor=2<|, mode='bilinear'>)
    torch.nn.functional.cosine_similarity({f}, {f} + 1, dim={d})
    torch.nn.functional.conv1d({f}[None], torch.ones(2, {f}.shape[0], 1, dtype={f}.dtype, device=device))
    torch.nn.functional.conv2d({f}[None, None], torch.ones(2, 1, 1, 2, dtype={f}.dtype, device=device))
    torch.nn.functional.embedding({i}.abs().remainder(2), {f})
    torch.nn.functional.scaled_dot_product_attention({f}, {f}, {f})
    torch.nn.functional.unfold({f}[None, None], 1)
    torch.nn.functional.prelu({f}, torch.tensor([0.5], dtype={f}.dtype, device=device))
    torch.nn.functional.pairwise_distance({f}, {f} + 1)
    torch.fft.<fft|ifft|rfft|fftshift>({x})
    torch.linalg.<det|matrix_norm>({f} @ {f}.mT)
    torch.renorm({f}, 2, {d}, 3)
    """,
    rounds=True,
)

CAST = [
    *_family(
        "cast",
        """
        {x}.<to|type>(torch.{D})
        {x}.to(torch.{D}<|, copy=True>)
        {x}.<float|double|long|bool|half|int>()
        {x}.<type_as|to>({y})
        """,
        picky=True,
    ),
]

# `{x}` is what is written.
_INTO = [
    *_family(
        "write",
        """
        {x}.<add_|mul_|sub_>(<{y}|{a}>)
        {x}.<add_|sub_>({y}, alpha={a})
        {x} <+|-|*>= <{y}|{a}>
        {x}.copy_({y})
        {x}.copy_({y})
        {x}.copy_(torch.full({x}.shape, 2))
        {x}.fill_(<{a}|{y}.sum()>)
        {x}.<zero_|neg_|abs_|relu_|square_|conj_physical_|tril_|triu_>()
        {x}.clamp_(<-2, 2|min={a}>)
        {x}.unsqueeze_({u})
        {x}.<squeeze_|t_|detach_>()
        {x}.<transpose_|swapaxes_>({d}, {e})
        {x}.as_strided_({strided})
        {x}.<cumsum_|cumprod_>({d})
        {x}.addcmul_({y}, {y}, value={a})
        {x}.<bitwise_xor_|bitwise_and_>({y})
        {x}.index_add_({d}, torch.tensor([0], device=device), {x}.narrow({d}, 0, 1).clone())
        {x}.index_copy_({d}, {rows}[:1], {x}.narrow({d}, 0, 1).clone())
        {x}.index_fill_({d}, {rows}, {a})
        {x}.index_put_(({rows},), {y}, accumulate=<True|False>)
        {x}.scatter_({d}, {indices}, {a})
        {x}.scatter_add_({d}, {indices}, {y})
        {x}.scatter_reduce_({d}, {indices}, {y}, 'amax')
        {x}.put_({places}[:1], {x}.flatten()[:1])
        {x}.masked_fill_({b}, {a})
        {x}.masked_scatter_({b}, {y})
        {x}.fill_diagonal_({a})
        {x}[{index}] = {a}
        {x}[{index}] = {a}
        {x}[{index}] = {y}
        {x}[{index}] += {a}
        {x}[{index}] *= {y}
        {x}[{rows}] = {a}
        {x}[{rows}] = {y}
        {x}[{b}] = {a}
        {x}[..., :1] = {y}
        {x}.select({d}, {n}).<add_|copy_>({y})
        {x}.select({d}, {n}).<zero_|neg_>()
        {x}.diagonal({offset}, {d}, {e}).<fill_|mul_>({a})
        {x}.view(-1)[::2].add_({a})
        {x}.flatten()[0:1].add_(1)
        {x}.real.<add_|zero_>(<1|>)
        {x}.mT.add_({y})
        {x}.add_({x}.flip({d}))
        {x}.data = {y}
        {x}.set_({y})
        {x}.<addmm_|addbmm_>({y}, {y}.mT)
        {x}.resize_({shape})
        torch.<add|mul|maximum>({y}, {y}, out={x})
        torch.<neg|abs|square>({y}, out={x})
        torch.<add|sub>({x}, {y}, out={x})
        torch.<sum|amax>({y}, {d}, out={x})
        torch.cat([{y}, {y}], out={x})
        torch.index_select({y}, {d}, {rows}, out={x})
        torch.where({b}, {y}, {y}, out={x})
        torch.matmul({y}, {y}, out={x})
        torch._foreach_<add_|mul_>([{x}], <[{y}]|{a}>)
        torch._foreach_<zero_|neg_>([{x}])
        torch._foreach_copy_([{x}], [{y}])
        {x}.untyped_storage().copy_({x}.clone().untyped_storage())
        """,
    ),
    *_family(
        "write",
        """
        {x}.masked_fill_({x} == 0, 1)
        {x}[{x} > 1] = 0
        {x}.<logical_not_|sign_|floor_|bitwise_not_>()
        {x}.<remainder_|floor_divide_>(2)
        {x}.<eq_|lt_|logical_and_>({y})
        {x}.random_(2, 3)
        torch.<eq|gt>({y}, {a}, out={x})
        torch.sort({y}, dim={d}, stable=True, out=({x}, torch.empty(0, dtype=torch.int64, device=device)))
        {x}.nan_to_num_(0, 1, -1)
        {x}.copy_({y} > 0)
        """,
        picky=True,
    ),
    *_family(
        "write",
        """
        {x}.<sigmoid_|sin_|exp_|tanh_|erf_>()
        {x}.lerp_({y}, 0.5)
        {x}.pow_(2)
        {x}.div_(<2|{y}|{a}>)
        {x}.addcdiv_({y}, {y}.abs() + 1)
        torch.<div|pow>({y}, 2, out={x})
        torch.<mean|logsumexp>({y}, {d}, out={x})
        torch.<exp|sigmoid>({y}, out={x})
        torch.nn.functional.<relu|elu|silu>({x}, inplace=True)
        torch._foreach_<div_|pow_>([{x}], 2)
        """,
        rounds=True,
    ),
]

FAMILIES: dict[str, tuple[int, list[Template]]] = {
    "pointwise": (4, POINTWISE),
    "binary": (5, BINARY),
    "reduction": (4, REDUCTION),
    "view": (9, VIEW),
    "moving": (5, MOVING),
    "product": (1, PRODUCT),
    "network": (2, NETWORK),
    "cast": (2, CAST),
    "write": (9, _INTO),
}
"""How often each family comes, and its templates."""
