"""DLPack by hand: a library that takes and gives arrays, for tests."""

import ctypes
import math


class Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("index", ctypes.c_int32))


class DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.pythonapi["PyCapsule_New"]
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, Destructor)
_get = ctypes.pythonapi["PyCapsule_GetPointer"]
_get.restype, _get.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
_is_valid = ctypes.pythonapi["PyCapsule_IsValid"]
_is_valid.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_rename = ctypes.pythonapi["PyCapsule_SetName"]
_rename.argtypes = (ctypes.py_object, ctypes.c_char_p)


class Taken:
    """The array of a capsule. It releases the capsule's memory when it is deleted."""

    def __init__(self, capsule):
        versioned = bool(_is_valid(id(capsule), b"dltensor_versioned"))
        self._pointer = _get(id(capsule), b"dltensor_versioned" if versioned else b"dltensor")
        self._managed = (Versioned if versioned else Managed).from_address(self._pointer)
        # A capsule does not copy its name, and literals stay.
        _rename(capsule, b"used_dltensor")
        described = self._managed.tensor
        self.address = (described.data or 0) + described.byte_offset
        self.device = (described.device.type, described.device.index)
        self.code, self.bits = described.dtype.code, described.dtype.bits
        self.shape = tuple(described.shape[: described.ndim])
        self.nbytes = math.prod(self.shape) * self.bits // 8

    def __del__(self):
        self._managed.deleter(self._pointer)


OFFSET = 16
_given = {}


@Deleter
def _let_go(pointer):
    del _given[pointer]


@Destructor
def _drop(capsule):
    if _is_valid(capsule, b"dltensor"):
        _let_go(_get(capsule, b"dltensor"))


def give(owner, address, shape, code, bits, device):
    """A capsule of contiguous memory that `owner` keeps."""
    dtype = DataType(code, bits, 1)
    extents = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    managed = Managed(deleter=_let_go)
    # Libraries may point to where an allocation begins.
    managed.tensor = Tensor(address - OFFSET, Device(*device), len(shape), dtype, extents, None, OFFSET)
    pointer = ctypes.addressof(managed)
    _given[pointer] = (owner, managed, extents)
    return _new(pointer, b"dltensor", _drop)


class Foreign:
    """An array of a library that gives it by DLPack only."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()
