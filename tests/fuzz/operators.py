"""Random calls of PyTorch as lines of source, over tensors whose sizes, dtypes and exactness are known."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES = ("float32", "float32", "float64", "int64", "int32", "uint8", "bool", "bfloat16", "float16", "complex64")
SIZES = (
    (),
    (3,),
    (4,),
    (2, 3),
    (3, 2),
    (1, 3),
    (3, 1),
    (2, 3, 2),
    (2, 1, 3),
    (0, 3),
    (1,),
    (3, 3),
    (2, 2, 3),
    (2, 3, 4),
)


@dataclass(frozen=True)
class Known:
    """A tensor of the program so far. `exact`: its elements are the same on every device, to the last bit."""

    name: str
    tensor: Tensor
    exact: bool


@dataclass(frozen=True)
class Call:
    """A line of source; `target` is what it writes to, if anything."""

    source: str
    operands: tuple[Known, ...] = ()
    keeps_exact: bool = True
    needs_exact: bool = False
    target: Known | None = None


class Writer:
    """Chooses operands and arguments; each method writes a call of one family, or `None` if nothing fits."""

    def __init__(self, dice: random.Random, known: list[Known]) -> None:
        self.dice = dice
        self.known = known

    def any(self, fits: Callable[[Tensor], bool] = lambda t: True) -> Known | None:
        """A tensor that fits; the latest are chosen most."""
        fitting = [k for k in self.known if fits(k.tensor)]
        if not fitting:
            return None
        return fitting[-1 - min(int(self.dice.expovariate(0.4)), len(fitting) - 1)]

    def dim(self, tensor: Tensor) -> int:
        """A dimension, counted from either end; for a tensor without any, 0 or -1."""
        return self.dice.randrange(-max(tensor.dim(), 1), max(tensor.dim(), 1))

    def number(self, tensor: Tensor) -> str:
        """A Python number of a kind that may promote `tensor`."""
        return self.dice.choice(("2", "3", "-1", "0", "1", "True", "0.5", "2.0", "-1.5"))

    def of(self, names: str, separator: str = " ") -> str:
        return self.dice.choice(names.split(separator))

    def fresh(self) -> Call:
        """A new tensor of small numbers."""
        size, dtype = self.dice.choice(SIZES), self.dice.choice(DTYPES)
        kind = self.dice.random()
        if kind < 0.2:
            made = self.dice.choice(
                (f"torch.zeros({size})", f"torch.ones({size})", f"torch.full({size}, 2)", "torch.eye(3)")
            )
            return Call(f"{made[:-1]}, dtype=torch.{dtype}, device=device)")
        numel = torch.Size(size).numel()
        low = 0 if dtype in ("uint8", "bool") else -4
        numbers = [self.dice.randrange(low, 2 if dtype == "bool" else 5) for _ in range(numel)]
        return Call(f"torch.tensor({numbers}, dtype=torch.{dtype}).reshape({size}).to(device)")

    def unary(self) -> Call | None:
        x = self.any()
        if x is None:
            return None
        if self.dice.random() < 0.5:
            op = self.of(
                "neg abs clone square relu positive conj_physical logical_not bitwise_not isnan isfinite sgn sign"
            )
            return Call(
                f"torch.{op}({x.name})", (x,), needs_exact=op in ("sign", "sgn", "logical_not", "isnan", "isfinite")
            )
        if self.dice.random() < 0.3:
            op = self.of("floor ceil round trunc frac signbit isinf isposinf")
            return Call(f"torch.{op}({x.name})", (x,), needs_exact=True)
        op = self.of(
            "sin cos tanh sigmoid atan erf exp expm1 sinh asinh rsqrt log1p log2 sqrt log reciprocal special.i0 lgamma"
        )
        inner = x.name if op in ("sin", "cos", "tanh", "sigmoid", "atan", "erf", "asinh") else f"{x.name}.abs()"
        return Call(f"torch.{op}({inner})", (x,), keeps_exact=False)

    def binary(self) -> Call | None:
        x, y = self.any(), self.any()
        if x is None or y is None:
            return None
        kind = self.dice.random()
        if kind < 0.35:
            op = self.of("add sub mul maximum minimum rsub")
            return Call(f"torch.{op}({x.name}, {y.name})", (x, y))
        if kind < 0.5:
            op = self.of("eq ne lt le gt ge logical_and logical_or logical_xor remainder fmod floor_divide")
            other = y.name if op not in ("remainder", "fmod", "floor_divide") else self.of("2 3 -2 1")
            return Call(f"torch.{op}({x.name}, {other})", (x, y), needs_exact=True)
        if kind < 0.6:
            op = self.of("bitwise_and bitwise_or bitwise_xor gcd lcm")
            return Call(f"torch.{op}({x.name}, {y.name})", (x, y))
        if kind < 0.7:
            op = self.of("atan2 hypot div true_divide logaddexp")
            return Call(f"torch.{op}({x.name}, {y.name}.abs() + 1)", (x, y), keeps_exact=False)
        if kind < 0.85:
            operator = self.of("+ - *")
            pair = (x.name, self.number(x.tensor))
            left, right = pair if self.dice.random() < 0.6 else pair[::-1]
            return Call(f"{left} {operator} {right}", (x,))
        exponent = self.of("2 3 1 0")
        return Call(f"{x.name} ** {exponent}", (x,), keeps_exact=not x.tensor.is_complex())

    def reduction(self) -> Call | None:
        x = self.any()
        if x is None:
            return None
        dims = "" if self.dice.random() < 0.3 else f", {self.dim(x.tensor)}"
        if dims and self.dice.random() < 0.4:
            dims += f", keepdim={self.of('True False')}"
        kind = self.dice.random()
        if kind < 0.4:
            op = self.of("sum amax amin any all count_nonzero")
            if op == "count_nonzero":
                dims = dims.partition(", keepdim")[0]
            return Call(f"torch.{op}({x.name}{dims})", (x,), needs_exact=op in ("any", "all", "count_nonzero"))
        if kind < 0.6:
            op = self.of("mean logsumexp var std norm nansum prod")
            if op == "logsumexp" and not dims:
                dims = f", {self.dim(x.tensor)}"
            if op == "norm":
                dims = dims.replace(", ", ", dim=", 1)
            return Call(f"torch.{op}({x.name}{dims})", (x,), keeps_exact=op in ("nansum", "prod"))
        if kind < 0.75:
            op = self.of("cumsum cumprod cummax logcumsumexp")
            suffix = ".values" if op == "cummax" else ""
            return Call(f"torch.{op}({x.name}, {self.dim(x.tensor)}){suffix}", (x,), keeps_exact=op != "logcumsumexp")
        op = self.of("sort topk argmax max median kthvalue unique nonzero argsort")
        dim = self.dim(x.tensor)
        text = {
            "sort": f"torch.sort({x.name}, dim={dim}, stable=True).indices",
            "argsort": f"torch.argsort({x.name}, dim={dim}, descending=True, stable=True)",
            "topk": f"torch.topk({x.name}, 1, dim={dim}).values",
            "argmax": f"torch.argmax({x.name}, dim={dim})",
            "max": f"torch.max({x.name}, dim={dim}).indices",
            "median": f"torch.median({x.name}, dim={dim}).values",
            "kthvalue": f"torch.kthvalue({x.name}, 1, dim={dim}).values",
            "unique": f"torch.unique({x.name})",
            "nonzero": f"torch.nonzero({x.name})",
        }[op]
        return Call(text, (x,), needs_exact=True)

    def view(self) -> Call | None:
        x = self.any(lambda t: t.dim() > 0)
        if x is None:
            return None
        t, name = x.tensor, x.name
        d, e = self.dim(t), self.dim(t)
        n = t.shape[d]
        start = self.dice.randrange(0, n + 1)
        order = self.dice.sample(range(t.dim()), t.dim())
        return Call(
            self.dice.choice(
                (
                    f"{name}.transpose({d}, {e})",
                    f"{name}.permute({order})",
                    f"{name}.flatten()",
                    f"{name}.reshape(-1)",
                    f"{name}.view(-1)",
                    f"{name}.unsqueeze({self.dice.randrange(-1, t.dim() + 1)})",
                    f"{name}.squeeze()",
                    f"{name}.select({d}, {self.dice.randrange(max(n, 1))})",
                    f"{name}.narrow({d}, {start}, {self.dice.randrange(0, n - start + 1)})",
                    f"{name}[{start}:]",
                    f"{name}[..., ::2]",
                    f"{name}[None]",
                    f"{name}[..., -1]",
                    f"{name}.expand(2, {', '.join(['-1'] * t.dim())})",
                    f"{name}.diagonal()",
                    f"{name}.unfold({d}, {self.dice.randrange(1, n + 2)}, 1)",
                    f"{name}.movedim({d}, {e})",
                    f"{name}.chunk(2, {d})[0]",
                    f"{name}.split(2, {d})[-1]",
                    f"{name}.T" if t.dim() == 2 else f"{name}.mT",
                    f"torch.view_as_real({name})",
                    f"torch.real({name})",
                    f"torch.imag({name})",
                    f"{name}.conj()",
                    f"{name}.detach()",
                    f"{name}.as_strided(({max(n, 1)},), (1,))",
                )
            ),
            (x,),
        )

    def moving(self) -> Call | None:
        x, y = self.any(lambda t: t.dim() > 0), self.any()
        if x is None or y is None:
            return None
        t, name, d = x.tensor, x.name, self.dim(x.tensor)
        n = max(t.shape[d], 1)
        index = f"torch.tensor({[self.dice.randrange(n) for _ in range(self.dice.randrange(1, 4))]}, device=device)"
        text = self.dice.choice(
            (
                f"torch.cat([{name}, {name}], {d})",
                f"torch.cat([{name}, {y.name}], {d})",
                f"torch.stack([{name}, {name}], {d})",
                f"{name}.flip({d})",
                f"{name}.roll(1, {d})",
                f"{name}.repeat(2, {', '.join(['1'] * t.dim())})",
                f"torch.tile({name}, (2,))",
                f"{name}.index_select({d}, {index})",
                f"{name}[{index}]",
                f"torch.take({name}, {index})",
                f"torch.tril({name})",
                f"torch.triu({name}, 1)",
                f"torch.nn.functional.pad({name}, (1, 2), value=3)",
                f"torch.nn.functional.pad({name}, (-1, 1))",
                f"{name}.repeat_interleave(2, {d})",
                f"{name}.contiguous()",
                f"{name}.diff(dim={d})",
                f"torch.where({name} > 0, {name}, {y.name})",
                f"torch.masked_fill({name}, {name} == 1, 7)",
                f"{name}[{name} > 0]",
                f"torch.masked_select({name}, {name} != 0)",
                f"torch.gather({name}, {d}, torch.zeros_like({name}, dtype=torch.int64))",
                f"torch.scatter_add({name}, {d}, torch.zeros_like({name}, dtype=torch.int64), {name})",
                f"torch.diag_embed({name})",
                f"torch.rot90({name})",
                f"torch.bincount({name}.flatten().abs().to(torch.int64))",
                f"torch.searchsorted(torch.tensor([-1, 0, 2], device=device), {name})",
            )
        )
        return Call(
            text, (x, y), needs_exact=any(word in text for word in (" > ", " == ", " != ", "bincount", "searchs"))
        )

    def product(self) -> Call | None:
        x, y = self.any(lambda t: t.dim() > 0), self.any(lambda t: t.dim() > 0)
        if x is None or y is None:
            return None
        # Small whole numbers: a product is exact whatever the order of its sums.
        return Call(
            self.dice.choice(
                (
                    f"{x.name} @ {y.name}",
                    f"{x.name} @ {x.name}.mT",
                    f"torch.outer({x.name}.flatten(), {y.name}.flatten())",
                    f"torch.einsum('i...,i...->...', {x.name}, {x.name})",
                    f"torch.addmm({y.name}, {x.name}, {x.name}.mT)",
                    f"torch.linalg.vecdot({x.name}, {x.name})",
                    f"torch.kron({x.name}, {y.name})",
                    f"torch.nn.functional.linear({x.name}, {y.name})",
                )
            ),
            (x, y),
        )

    def network(self) -> Call | None:
        x = self.any(lambda t: t.dim() > 0 and (t.is_floating_point()))
        if x is None:
            return None
        name, d = x.name, self.dim(x.tensor)
        return Call(
            self.dice.choice(
                (
                    f"torch.softmax({name}, {d})",
                    f"torch.log_softmax({name}, {d})",
                    f"torch.nn.functional.gelu({name})",
                    f"torch.nn.functional.silu({name})",
                    f"torch.nn.functional.elu({name})",
                    f"torch.nn.functional.softplus({name})",
                    f"torch.nn.functional.layer_norm({name}, {name}.shape[-1:])",
                    f"torch.nn.functional.normalize({name}, dim={d})",
                    f"torch.nn.functional.mse_loss({name}, {name} * 2)",
                    f"torch.nn.functional.smooth_l1_loss({name}, {name} * 2, reduction='none')",
                    f"torch.nn.functional.glu(torch.cat([{name}, {name}], {d}), {d})",
                    f"torch.nn.functional.avg_pool1d({name}, 2)",
                    f"torch.nn.functional.max_pool1d({name}, 2)",
                    f"torch.nn.functional.interpolate({name}[None, None], scale_factor=2)",
                    f"torch.nn.functional.cosine_similarity({name}, {name} + 1, dim={d})",
                )
            ),
            (x,),
            keeps_exact=False,
        )

    def cast(self) -> Call | None:
        x = self.any()
        if x is None:
            return None
        dtype = self.dice.choice(DTYPES)
        if dtype == "uint8" and not (x.tensor.dtype is torch.bool or bool((x.tensor >= 0).all())):
            return None  # a negative number as an unsigned one is whatever the processor makes of it
        text = self.dice.choice(
            (f"{x.name}.to(torch.{dtype})", f"{x.name}.type(torch.{dtype})", f"{x.name}.to(torch.{dtype}, copy=True)",
             f"torch.zeros_like({x.name}, dtype=torch.{dtype})", f"{x.name}.new_ones(2, 2, dtype=torch.{dtype})")
        )  # fmt: skip
        # Narrowing rounds a number the other way if it differs in its last bit.
        return Call(text, (x,), needs_exact=True)

    def write(self) -> Call | None:
        x, y = self.any(), self.any()
        if x is None or y is None:
            return None
        t, name, d = x.tensor, x.name, self.dim(x.tensor)
        if t.dtype is not y.tensor.dtype and torch.uint8 in (t.dtype, y.tensor.dtype):
            return None  # as in `cast`
        n = max(t.shape[d], 1) if t.dim() else 1
        text = self.dice.choice(
            (
                f"{name}.add_({y.name})", f"{name}.mul_({self.number(t)})", f"{name}.sub_({y.name}, alpha=2)",
                f"{name}.copy_({y.name})", f"{name}.fill_({self.number(t)})", f"{name}.zero_()", f"{name}.neg_()",
                f"{name}.clamp_(-2, 2)", f"{name}.abs_()", f"{name}.relu_()", f"{name}.square_()",
                f"{name}.masked_fill_({name} == 0, 1)", f"{name}[..., :1] = {y.name}", f"{name}[..., 0] = 3",
                f"{name}[{name} > 1] = 0", f"{name}[{self.dice.randrange(n)}] += 1", f"{name}.t_()",
                f"{name}.unsqueeze_(0)", f"{name}.squeeze_()", f"{name}.transpose_({d}, 0)", f"{name}.cumsum_({d})",
                f"{name}.index_fill_({d}, torch.tensor([0], device=device), 5)", f"{name}.tril_()",
                f"{name}.bitwise_xor_({y.name})", f"{name}.logical_not_()", f"{name}.maximum({y.name})",
                f"{name}.index_add_({d}, torch.tensor([0], device=device), {name}.narrow({d}, 0, 1).clone())",
                f"{name}.data = {y.name}", f"{name}.set_({y.name})", f"{name}.swapaxes_({d}, 0)",
                f"torch.add({name}, {y.name}, out={y.name})", f"torch.cat([{name}, {name}], out={y.name})",
                f"{name}.add_({name}.flip({d}))", f"{name}.lerp_({y.name}, 0.5)",
                f"{name}.flatten()[0:1].add_(1)", f"{name}.pow_(2)", 
                f"{name}.put_(torch.tensor([0], device=device), {name}.flatten()[:1])",
            )
        )  # fmt: skip
        needs = any(
            word in text for word in (" == ", " > ", "logical", "copy_", "] = ", "add_", "data =", "set_", "out=")
        )
        target = y if "out=" in text else x
        return Call(text, (x, y), needs_exact=needs, target=target)

    def other(self) -> Call | None:
        x = self.any()
        if x is None or self.dice.random() < 0.5:
            return Call("sync()", target=None)
        return Call(f"read({x.name})", (x,))


FAMILIES: tuple[tuple[Callable[[Writer], Call | None], int], ...] = (
    (Writer.fresh, 2), (Writer.unary, 3), (Writer.binary, 5), (Writer.reduction, 3), (Writer.view, 7),
    (Writer.moving, 4), (Writer.product, 1), (Writer.network, 1), (Writer.cast, 2), (Writer.write, 7),
    (Writer.other, 1),
)  # fmt: skip


def write_call(dice: random.Random, known: list[Known]) -> Call | None:
    """A random call over the tensors `known`."""
    families, weights = zip(*FAMILIES, strict=True)
    return dice.choices(families, weights)[0](Writer(dice, known))  # type: ignore[no-any-return]
