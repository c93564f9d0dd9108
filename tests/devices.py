"""The devices that tests of computation run on: the CPU, and the first GPU where there is one."""

from __future__ import annotations

import pytest
import torch

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
