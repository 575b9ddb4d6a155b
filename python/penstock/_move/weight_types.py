"""The element types of .safetensors files that penstock's own types lack: they travel as bytes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from .._checks import dtype_name
from .._errors import InvalidArgument, Unsupported

# The name in the file, and PyTorch's. NumPy has complex64; ml_dtypes has the 8-bit floats, by the same names.
_NAMES = {
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn_x2",
}
_TYPES = {name: type_name for type_name, name in _NAMES.items()}


def file_type(dtype: Any) -> str | None:
    """The name in the file of a dtype of PyTorch, NumPy or ml_dtypes; None for those that need no such care."""
    return _TYPES.get(str(dtype).removeprefix("torch."))


def file_shape(type_name: str, shape: tuple[int, ...]) -> list[int]:
    """The shape in the file, which counts each of the two numbers in a byte of F4."""
    return [*shape[:-1], 2 * shape[-1]] if type_name == "F4" and shape else list(shape)


def view_of(tensor: Any, on_gpu: bool, to_convert: bool) -> Any:
    """What turns the bytes of `tensor`, a WeightTensor, into an array of its type and shape.

    Raises Unsupported if the library of the arrays does not have the type, or does not convert it.
    """
    dtype = _dtype(tensor, on_gpu)
    shape = tuple(tensor.shape)
    if tensor.type == "F4":
        if to_convert:
            raise Unsupported(
                f"Tensor '{tensor.name}' is of type F4, which PyTorch does not convert: leave `dtype` out."
            )
        if not shape or shape[-1] % 2:
            raise Unsupported(f"Tensor '{tensor.name}' is of type F4, whose last axis must be even: it is {shape}.")
        shape = (*shape[:-1], shape[-1] // 2)
    return lambda array: array.view(dtype).reshape(shape)


def conversion_to(dtype: Any, on_gpu: bool) -> Callable[[dict[str, Any]], None]:
    """What converts the floating tensors of a dict, in their place. If there is one of another type, the others are
    cloned, so that none keeps the block in which all of them came.

    Raises InvalidArgument for what is not a floating type, Unsupported if the library of the tensors cannot convert to
    it, or on a GPU.
    """
    name, torch = dtype_name("dtype", dtype), sys.modules.get("torch")
    if not _is_floating(name):
        raise InvalidArgument(f'dtype is a floating type, such as "bfloat16" or torch.float16, not {dtype!r}.')
    if torch is None and on_gpu:
        raise Unsupported("Converting to a dtype on a GPU needs PyTorch: import torch before, or leave `dtype` out.")
    wanted = getattr(torch or importlib.import_module("numpy"), name, None)
    if wanted is None and torch is None:
        wanted = getattr(_library_beside_numpy(name), name, None)
    if not isinstance(wanted, type if torch is None else torch.dtype) or name.startswith("float4"):
        advice = "import torch, or install ml_dtypes" if torch is None else "this PyTorch cannot"
        raise Unsupported(f"Converting to {name}: {advice}. Or leave `dtype` out.")

    def convert(tensors: dict[str, Any]) -> None:
        floats = {key for key, tensor in tensors.items() if _is_floating(str(tensor.dtype).removeprefix("torch."))}
        if all(tensors[key].dtype == wanted for key in floats):
            return
        for key, tensor in tensors.items():
            to = wanted if key in floats else tensor.dtype
            tensors[key] = tensor.astype(to) if torch is None else tensor.to(to, copy=True)

    return convert


def _is_floating(name: str) -> bool:
    return name.startswith(("float", "bfloat"))


def _dtype(tensor: Any, on_gpu: bool) -> Any:
    library, advice = sys.modules.get("torch"), "this PyTorch does not have it"
    if library is None and on_gpu:
        advice = "import torch, which has it, or load it to the host"
    elif library is None:
        library, advice = _library_beside_numpy(tensor.type), "import torch, or install ml_dtypes"
    dtype = getattr(library, _NAMES.get(tensor.type, ""), None)
    if dtype is None:
        raise Unsupported(f"Tensor '{tensor.name}' is of type {tensor.type}: {advice}. Or leave it out by `names`.")
    return dtype


def _library_beside_numpy(type_name: str) -> Any:
    try:
        return importlib.import_module("numpy" if type_name == "C64" else "ml_dtypes")
    except ImportError:
        return None
