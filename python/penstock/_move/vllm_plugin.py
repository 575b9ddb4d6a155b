"""What vLLM calls in each of its processes, by the entry point `vllm.general_plugins`."""

import contextlib


def register() -> None:
    """Have vLLM know the backend "penstock" of its sleep mode. Does nothing if this vLLM has no such backends."""
    try:
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
    except ImportError:
        return
    with contextlib.suppress(ValueError):  # it is registered already
        SleepModeBackendFactory.register_backend("penstock", "penstock._move.vllm_backend", "PenstockBackend")
