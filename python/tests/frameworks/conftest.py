import sys

import pytest
from launch import PATHS

import penstock

sys.path += PATHS

HAS_GPU = any(device.backend == "cuda" for device in penstock.devices())


@pytest.fixture
def target() -> str:
    """The GPU if there is one; otherwise the host in its late mode."""
    return "cuda" if HAS_GPU else "host:late=1"
