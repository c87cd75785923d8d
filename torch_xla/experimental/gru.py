"""GRU layers under the documented name."""

from torch import nn


class GRU(nn.GRU):
    """`torch.nn.GRU`, whose layers are a loop over time on `xla`: one operation each, forwards and backwards.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.gru import GRU
    >>> output, hidden = GRU(3, 4).to("xla")(torch.ones(5, 2, 3, device="xla"))
    >>> output.shape, hidden.shape
    (torch.Size([5, 2, 4]), torch.Size([1, 2, 4]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
