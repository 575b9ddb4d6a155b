import sys

import pytest

import penstock

# The same package under two names; the documents use the newer one.
try:
    import lightning  # noqa: F401
except ImportError:
    try:
        import pytorch_lightning

        sys.modules["lightning"] = pytorch_lightning
    except ImportError:
        pass

HAS_GPU = any(device.backend == "cuda" for device in penstock.devices())


@pytest.fixture
def target() -> str:
    """Where a GPU is, it; otherwise the host that delivers as late as ordering allows."""
    return "cuda" if HAS_GPU else "host:late=1"
