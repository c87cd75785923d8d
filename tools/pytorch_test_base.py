"""For PyTorch's own tests as its developers run them, which ask for a class for each device:

    TORCH_TEST_DEVICES=tools/pytorch_test_base.py python pytorch/test/test_torch.py -k test_put_xla_uint8

`torch.testing._internal.common_device_type` runs this file among its own names and takes `TEST_CLASS`.
"""

import torch_xla  # noqa: F401  the device


class XLATestBase(PrivateUse1TestBase):  # type: ignore[name-defined]  # noqa: F821
    """Makes the tests of `xla`."""

    device_type = "xla"


TEST_CLASS = XLATestBase
