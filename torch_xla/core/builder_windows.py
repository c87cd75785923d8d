"""The operations of XLA's builder on windows: convolutions and poolings."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from .._engine import interop


class Windowed:
    """The window operations of `Op`."""

    def __init__(self, op: interop.BuilderNode) -> None:
        self.op = op

    def operation(self, name: str, others: Sequence[Any], **kwargs: object) -> Any:
        """Return the operation that XLA calls `name`, with this and `others` as operands."""
        nodes = [self.op, *(each.op for each in others)]
        return type(self)(interop.builder_operation(name, self.op.builder, nodes, kwargs))

    def conv(
        self,
        kernel: object,
        window_strides: Sequence[int],
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        padding: str = "valid",
        precision_config: object = None,
    ) -> Any:
        """Convolve [batch, features, space…] with [outputs, inputs, space…]; padding is "valid" or "same"."""
        return self.operation(
            "ConvGeneralDilated", (kernel,), window_strides=window_strides, padding=padding,
            feature_group_count=feature_group_count, batch_group_count=batch_group_count,
            precision_config=precision_config,
        )  # fmt: skip

    def conv_with_general_padding(
        self, kernel: object, window_strides: Sequence[int], padding: object, *groups: object, **options: object
    ) -> Any:
        """Convolve as `conv` does, with a pair of paddings for each spatial dimension."""
        return self.operation(
            "ConvGeneralDilated", (kernel,), window_strides=window_strides, padding=padding,
            **_groups(groups, options),
        )  # fmt: skip

    def conv_with_general_dimensions(
        self,
        kernel: object,
        window_strides: Sequence[int],
        input_batch_dimension: int,
        input_feature_dimension: int,
        kernel_input_feature_dimension: int,
        kernel_output_feature_dimension: int,
        output_batch_dimension: int,
        output_feature_dimension: int,
        input_spatial_dimensions: Sequence[int],
        kernel_spatial_dimensions: Sequence[int],
        output_spatial_dimensions: Sequence[int],
        padding: object = "valid",
        *groups: object,
        **options: object,
    ) -> Any:
        """Convolve as `conv` does, with the order of dimensions in the arguments."""
        dimensions = (
            (input_batch_dimension, input_feature_dimension, *input_spatial_dimensions),
            (kernel_output_feature_dimension, kernel_input_feature_dimension, *kernel_spatial_dimensions),
            (output_batch_dimension, output_feature_dimension, *output_spatial_dimensions),
        )
        return self.operation(
            "ConvGeneralDilated", (kernel,), window_strides=window_strides, padding=padding,
            dimensions=dimensions, **_groups(groups, options),
        )  # fmt: skip

    def conv_general(
        self, kernel: Any, window_strides: Sequence[int], padding: Any, *dimensions: Any, **options: Any
    ) -> Self:
        """Convolve as `conv_with_general_dimensions` does, with the padding, as pairs, after the strides."""
        return self.conv_with_general_dimensions(
            kernel, window_strides, *dimensions[:9], padding, *dimensions[9:], **options
        )

    def conv_general_dilated(
        self,
        kernel: object,
        window_strides: Sequence[int],
        padding: object,
        lhs_dilation: Sequence[int],
        rhs_dilation: Sequence[int],
        *dimensions: object,
        **options: object,
    ) -> Self:
        """Convolve as `conv_general` does, with a dilated input (`lhs_dilation`) and kernel (`rhs_dilation`)."""
        options.update(lhs_dilation=tuple(lhs_dilation), rhs_dilation=tuple(rhs_dilation))
        return self.conv_general(kernel, window_strides, padding, *dimensions, **options)

    def select_and_scatter(
        self,
        source: object,
        init_value: object,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        select_computation: object,
        scatter_computation: object,
        padding: object = "valid",
    ) -> Any:
        """Return the gradient of a pooling: each element of `source` is added where its window's chosen element is."""
        return self.operation(
            "SelectAndScatter", (source, init_value,), window_dimensions=window_dimensions,
            window_strides=window_strides, select_computation=select_computation,
            scatter_computation=scatter_computation, padding=padding,
        )  # fmt: skip

    # The padding may be pairs there and here.
    select_and_scatter_with_general_padding = select_and_scatter

    def max_pool(
        self,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        batch_dimension: int,
        feature_dimension: int,
        spatial_dimensions: Sequence[int],
        padding: object = "valid",
    ) -> Self:
        """Return the largest element of each window over the spatial dimensions."""
        return self.operation(
            "MaxPool", (), kernel_size=kernel_size, stride=stride, batch_dimension=batch_dimension,
            feature_dimension=feature_dimension, spatial_dimensions=spatial_dimensions, padding=padding,
        )  # fmt: skip

    def reduce_window(
        self,
        init_value: object,
        computation: object,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: object = "valid",
    ) -> Any:
        """Reduce each window."""
        return self.operation(
            "ReduceWindow", (init_value,), computation=computation, window_dimensions=window_dimensions,
            window_strides=window_strides, padding=padding,
        )  # fmt: skip


def _groups(groups: Sequence[object], options: Mapping[str, object]) -> dict[str, object]:
    names = ("feature_group_count", "batch_group_count", "precision_config")
    return {**dict(zip(names, groups, strict=False)), **options}
