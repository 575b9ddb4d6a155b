import sys

import pytest
from launch import PATHS

import penstock

sys.path += PATHS

HAS_GPU = any(device.backend == "cuda" for device in penstock.devices())


@pytest.fixture
def target() -> str:
    """Where a GPU is, it; otherwise the host that delivers as late as ordering allows."""
    return "cuda" if HAS_GPU else "host:late=1"
