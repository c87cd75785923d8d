"""Policies for `auto_wrap_policy`, which decide which submodules become separate units.

A policy is called twice for a module: with `recurse=True` it decides whether to visit the children, and with
`recurse=False`, after the children, whether to wrap the module. `unwrapped_params` is the number of elements of its
parameters that no unit holds.
"""

from collections.abc import Callable, Iterable, Set

from torch import nn

from ..._engine.compat.names.torch import modules_of


def always_wrap_policy(*args: object, **kwargs: object) -> bool:
    """Wrap every submodule.

    >>> always_wrap_policy()
    True
    """
    return True


def lambda_auto_wrap_policy(
    module: nn.Module, recurse: bool, unwrapped_params: int, lambda_fn: Callable[[nn.Module], bool]
) -> bool:
    """Wrap the submodules for which `lambda_fn(module)` is true.

    >>> from functools import partial
    >>> policy = partial(lambda_auto_wrap_policy, lambda_fn=lambda module: isinstance(module, nn.Linear))
    >>> policy(nn.Linear(2, 2), recurse=False, unwrapped_params=6)
    True
    """
    return recurse or lambda_fn(module)


def transformer_auto_wrap_policy(
    module: nn.Module, recurse: bool, unwrapped_params: int, transformer_layer_cls: Set[type[nn.Module]]
) -> bool:
    """Wrap the submodules of the given classes: the layers of a transformer.

    >>> from functools import partial
    >>> policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer})
    >>> policy(nn.Linear(2, 2), recurse=False, unwrapped_params=6)
    False
    """
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    min_num_params: int = int(1e8),
    force_leaf_modules: Set[type[nn.Module]] | None = None,
    exclude_wrap_modules: Set[type[nn.Module]] | None = None,
) -> bool:
    """Wrap a submodule with at least `min_num_params` elements that no unit below holds.

    The children of modules of the classes in `force_leaf_modules`, by default `nn.MultiheadAttention`, are not visited.
    Modules of the classes in `exclude_wrap_modules`, by default `nn.ModuleList` and `nn.ModuleDict`, are not wrapped,
    but their children may be.

    >>> from functools import partial
    >>> policy = partial(size_based_auto_wrap_policy, min_num_params=6)
    >>> policy(nn.Linear(2, 2), recurse=False, unwrapped_params=6)
    True
    """
    leaves = {nn.MultiheadAttention} if force_leaf_modules is None else force_leaf_modules
    excluded = {nn.ModuleList, nn.ModuleDict} if exclude_wrap_modules is None else exclude_wrap_modules
    if unwrapped_params < min_num_params:
        return False
    return not isinstance(module, tuple(leaves if recurse else excluded))


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Callable[..., bool],
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: Iterable[nn.Module],
    ignored_params: Iterable[nn.Parameter],
    only_wrap_children: bool = False,
    **kwargs: object,
) -> tuple[nn.Module, int]:
    """Replace each submodule of `module` that a policy chooses by `wrapper_cls(submodule, **kwargs)`, innermost first.

    Returns the module (with `only_wrap_children=False`, possibly its wrapper) and the number of wrapped elements of
    parameters. `ignored_modules` and their submodules are not changed; `ignored_params` are not counted.

    >>> class Unit(nn.Module):
    ...     def __init__(self, module): super().__init__(); self.module = module
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> policy = lambda module, recurse, unwrapped_params: recurse or isinstance(module, nn.Linear)
    >>> _, count = recursive_wrap(model, policy, Unit, (), (), only_wrap_children=True)
    >>> type(model[0]).__name__, count
    ('Unit', 6)
    """
    left_alone, uncounted = set(ignored_modules), {id(parameter) for parameter in ignored_params}
    total = sum(parameter.numel() for parameter in module.parameters() if id(parameter) not in uncounted)
    if not auto_wrap_policy(module=module, recurse=True, unwrapped_params=total):
        return module, 0
    wrapped = 0
    done: dict[nn.Module, nn.Module] = {}  # a module that occurs twice has one wrapper
    for name, child in module.named_children():
        if child in left_alone:
            continue
        replacement, count = recursive_wrap(
            child, auto_wrap_policy, wrapper_cls, left_alone, ignored_params, False, **kwargs
        )
        done[child] = replacement
        setattr(module, name, replacement)
        wrapped += count
    for name, child in list(modules_of(module).items()):
        if child in done and done[child] is not child:
            modules_of(module)[name] = done[child]
    rest = total - wrapped
    if not only_wrap_children and auto_wrap_policy(module=module, recurse=False, unwrapped_params=rest):
        return wrapper_cls(module, **kwargs), total
    return module, wrapped
