"""The nest that to_host writes into."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from .nests import on_host, parts_of


class Outputs:
    """Takes `out` apart, says which of its arrays cannot be written, and tells PyTorch about the others."""

    def __init__(self) -> None:
        self._tensors: list[Any] = []

    def __call__(self, value: Any, expanded: bool) -> Any:
        """(children, build) for containers that C++ does not know, and (value, None) for anything else."""
        return (None if _library_of(value) else parts_of(value)) or (value, None)

    def take(self, value: Any) -> Any:
        """The plain array whose memory this is, or why it cannot be written."""
        library = _library_of(value)
        if library is None:
            kind = type(value).__name__
            return f"is not an array but of type {kind}: pass PyTorch tensors on the CPU, or NumPy arrays."
        why = (_why_no_tensor if library == "torch" else _why_no_array)(value)
        if why is not None:
            return why
        if library == "numpy":
            return value.view(sys.modules["numpy"].ndarray)
        self._tensors.append(value)
        return value.detach()

    def will_be_written(self) -> None:
        """Counts the writes for autograd, which refuses to use what it has saved before them."""
        if not self._tensors:
            return
        graph = sys.modules["torch"].autograd.graph
        try:
            graph.increment_version(self._tensors)
        except (AttributeError, TypeError):  # older PyTorch has none, or one for a single tensor
            for tensor in self._tensors:
                tensor.detach().as_strided((0,), (1,)).zero_()

    @staticmethod
    def in_order(array: Any, axes: Sequence[int]) -> Any:
        """A copy of an array whose `axes` lie in memory in this order, the outermost first."""
        back = sorted(range(len(axes)), key=axes.__getitem__)
        if _library_of(array) == "torch":
            return array.permute(axes).contiguous().permute(back)
        import numpy

        return numpy.ascontiguousarray(on_host(array).transpose(axes)).transpose(back)


def why_not(value: Any) -> str:
    """Why this object, which moves itself, cannot be copied into `out`."""
    return (
        f"a {type(value).__name__} is not copied into `out`, which takes the bytes of plain arrays. Copy its parts, or "
        "leave `out` out. penstock.register_batch_type tells which arrays a type has."
    )


def _library_of(value: Any) -> str | None:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return "torch"
    return "numpy" if numpy is not None and isinstance(value, numpy.ndarray) else None


def _why_no_tensor(tensor: Any) -> str | None:
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu":
        return f"lies on {tensor.device}, not on the host."
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_quantized:
        return "is sparse, quantised or of a type of its own: pass a plain tensor."
    if tensor.is_conj() or tensor.is_neg():
        return "is a conjugate or negative view of other memory: pass a plain tensor."
    if tensor.requires_grad and torch.is_grad_enabled():
        return "requires a gradient: call to_host within torch.no_grad(), or pass its detach()."
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return "was made in torch.inference_mode(), which does not let you write to it outside."
    return None


def _why_no_array(array: Any) -> str | None:
    numpy = sys.modules["numpy"]
    if isinstance(array, numpy.ma.MaskedArray):
        return "is a masked array: pass its `.data`."
    return None if array.flags.writeable else "is read-only."
