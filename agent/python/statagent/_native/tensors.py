"""Tensors and arrays of all libraries as the C structure statagent_tensor."""

from __future__ import annotations

import array
import ctypes
import math
import sys
from typing import Any, Optional

from ..errors import TensorTypeError
from .host import PlaceCells
from .library import DTYPES, HELD_BYTES_MAX, Tensor

_TORCH_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
    "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "bool", "complex64": "c64", "complex128": "c128",
}  # fmt: skip
_NUMPY_DTYPES = {
    "f8": "f64", "f4": "f32", "f2": "f16", "i1": "i8", "i2": "i16", "i4": "i32", "i8": "i64", "u1": "u8", "u2": "u16",
    "u4": "u32", "u8": "u64", "b1": "bool", "c8": "c64", "c16": "c128",
}  # fmt: skip
BUFFERS = (memoryview, array.array)  # arrays of the standard library
_BUFFER_KINDS = {
    **dict.fromkeys("efd", "f"),
    **dict.fromkeys("bhilqn", "i"),
    **dict.fromkeys("BHILQN", "u"),
    "?": "bool",
}  # of struct
_EXTENSION_DTYPES = {"bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"}  # of ml_dtypes, by name
_DTYPE_NAMES = {number: name for name, number in DTYPES.items()}
_NAMES_BY_BYTES = {
    1: ("f8e4m3", "f8e5m2", "i8", "u8", "bool"), 2: ("f16", "bf16", "i16", "u16"), 4: ("f32", "i32", "u32"),
    8: ("f64", "i64", "u64", "c64"), 16: ("c128",),
}  # fmt: skip
_ITEM_BYTES = {DTYPES[name]: size for size, names in _NAMES_BY_BYTES.items() for name in names}  # of an element, by dtype
_EXPECTED = "expected a torch tensor, a NumPy array, or anything with DLPack or __array_interface__, in memory of the CPU or of a CUDA device, or a memoryview or array.array"
_DLPACK_CPU = (1, 3)  # kDLCPU, kDLCUDAHost (pinned memory)
_DLPACK_CUDA = 2
_CACHED_LAYOUTS_MAX = 4096
_CPU = -1  # as get_device() says

# torch.dtype -> number; filled at the first torch tensor.
_torch_numbers: dict[Any, int] = {}
# (dtype, shape, strides, device) -> a structure without its data pointer. A structure is removed while it is in use, so that two threads
# never share one.
_idle: dict[tuple[Any, ...], Tensor] = {}


def dtype_name(number: int) -> str:
    """ "f32" for 2."""
    return _DTYPE_NAMES[number]


def _fill_torch_numbers(torch: Any) -> dict[Any, int]:
    for name, ours in _TORCH_DTYPES.items():
        if hasattr(torch, name):
            _torch_numbers[getattr(torch, name)] = DTYPES[ours]
    return _torch_numbers


def _structure(dtype: int, shape: Any, strides: Any, cuda_device: int = -1) -> Tensor:
    dims = len(shape)
    entries = (ctypes.c_int64 * max(1, 2 * dims))(*shape, *strides)
    address = ctypes.addressof(entries)
    tensor = Tensor(dtype=dtype, shape=address, strides=address + 8 * dims, ndim=dims)
    tensor.entries = entries  # kept alive with the structure
    if cuda_device >= 0:
        tensor.device, tensor.device_index = 1, cuda_device
    else:
        tensor.held = math.prod(shape) * _ITEM_BYTES[dtype] <= HELD_BYTES_MAX
    return tensor


def cuda_stream(torch: Any, device: int) -> int:
    """This thread's current stream on the device."""
    try:
        return int(torch._C._cuda_getCurrentRawStream(device))  # takes a tenth of the public function's time
    except AttributeError:
        return int(torch.cuda.current_stream(device).cuda_stream)


def cuda_in_use() -> bool:
    """Whether torch has initialised CUDA in this process, as every CUDA tensor requires."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def capturing() -> bool:
    """Whether this thread's current CUDA stream is being captured into a graph, so that nothing runs until the graph is replayed."""
    return cuda_in_use() and bool(sys.modules["torch"].cuda.is_current_stream_capturing())


# A structure for one call of the library; the key under which it is returned, or None; the object that keeps the memory alive.
Borrowed = tuple[Tensor, Optional[tuple[Any, ...]], Any]


def borrow(value: Any) -> Borrowed:
    """The tensor or array as a structure, without a copy if its layout allows. Raises TensorTypeError, which names the problem."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _borrow_torch(torch, value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _borrow_numpy(numpy, value)
    return _borrow_foreign(value)


def give_back(borrowed: Borrowed) -> None:
    """Returns the structure, for the next tensor of the same layout. Not needed after a failure."""
    if borrowed[1] is not None:
        if borrowed[0].placed is not None:
            borrowed[0].placement = borrowed[0].placed = None
        _idle[borrowed[1]] = borrowed[0]


def plain_tensor_types() -> tuple[type, type]:
    """The types of torch tensors that consist of their memory only. Other subclasses may behave differently."""
    import torch

    return torch.Tensor, torch.nn.Parameter


class Place(PlaceCells):
    """A place in a model where a tensor appears in every step. Keeps the structure of the last tensor, so that the next one only needs its
    address if it has the same layout. Threads: any; a structure is removed while it is in use."""

    __slots__ = ("_device", "_dtype", "_item_bytes", "_shape", "_strides")

    def __init__(self) -> None:
        self.structure: Tensor | None = None  # while it is not in use
        self._dtype = self._shape = self._strides = None
        self._device, self._item_bytes = _CPU, 0

    def borrow(self, tensor: Any) -> Tensor | None:
        """The tensor's structure if its layout is that of the last tensor; assign it to `structure` after use. Otherwise None: call the
        function `borrow` and then `learn`. Precondition: type(tensor) is one of plain_tensor_types()."""
        structure, self.structure = self.structure, None
        if structure is None:
            return None
        try:  # raises for tensors without strides or memory
            if tensor.shape != self._shape or tensor.stride() != self._strides or tensor.dtype is not self._dtype:
                return None
            data, offset = tensor.data_ptr(), tensor.storage_offset()
            if not data or data == offset * self._item_bytes or tensor.get_device() != self._device:
                return None
            if offset & 1 and tensor.is_neg():  # see _is_negated
                return None
        except Exception:
            return None
        structure.data = data
        if self._device != _CPU:
            structure.stream = cuda_stream(sys.modules["torch"], self._device)
        return structure

    def learn(self, tensor: Any, borrowed: Borrowed) -> None:
        """Keeps the structure that the function `borrow` made for the tensor. Replaces a call of the function `give_back`."""
        if borrowed[2] is tensor and borrowed[1] is not None and borrowed[0].dtype < DTYPES["c64"]:
            self._device, self._dtype = tensor.get_device(), tensor.dtype
            self._shape, self._strides = tensor.shape, tensor.stride()
            self._item_bytes = tensor.element_size()
            self.keep(borrowed[0], tensor)
        else:
            give_back(borrowed)


def _refuse(found: str, expected: str = _EXPECTED) -> TensorTypeError:
    return TensorTypeError(f"statistics of a tensor: found {found}; {expected}")


def _is_negated(tensor: Any) -> bool:
    """Whether the memory holds the values with the opposite sign: `z.conj().imag`, whose offset is that of an imaginary part, so it is odd.

    is_neg() is asked of such tensors only, because it releases the GIL (docs/decisions/0029-holding-the-gil.md)."""
    try:
        return bool(tensor.storage_offset() & 1) and tensor.is_neg()
    except Exception:  # tensors without memory
        return bool(tensor.is_neg())


def _borrow_torch(torch: Any, tensor: Any) -> Borrowed:
    dtype = (_torch_numbers or _fill_torch_numbers(torch)).get(tensor.dtype)
    if dtype is None or not (tensor.is_cpu or tensor.is_cuda) or tensor.layout is not torch.strided:
        raise _refuse_torch(torch, tensor, dtype)
    if torch.nn.parameter.is_lazy(tensor):  # almost all of its attributes raise
        raise _refuse(
            "a parameter of a lazy module without a shape yet", "expected one with data, as it has after the first forward pass"
        )
    if _is_negated(tensor) or (dtype >= 16 and tensor.is_conj()):
        with torch.no_grad():
            tensor = tensor.resolve_conj().resolve_neg()
    try:
        data, shape, strides = tensor.data_ptr(), tensor.shape, tensor.stride()
        if data == tensor.storage_offset() * tensor.element_size():
            data = 0  # there is no storage, only an offset (FakeTensor, DTensor, memory that FSDP has freed)
    except RuntimeError:  # FakeTensor, wrappers of functorch, and others
        data, shape, strides = 0, (1,), (1,)
    if not data and 0 not in shape:
        if hasattr(tensor, "trigger_wait"):  # the result of a collective that may still run; its first use waits as well
            with torch.no_grad():
                return _borrow_torch(torch, tensor.trigger_wait())
        if hasattr(tensor, "to_local"):  # DTensor: this rank's shard
            with torch.no_grad():
                return _borrow_torch(torch, tensor.to_local())
        raise _refuse_unreadable(torch, tensor)
    device = tensor.get_device()  # -1: CPU
    key = (dtype, shape, strides, device)
    structure = _idle.pop(key, None)
    if structure is None:
        if len(_idle) >= _CACHED_LAYOUTS_MAX:
            _idle.clear()
        structure = _structure(dtype, shape, strides, device)
    structure.data = data
    if device >= 0:
        structure.stream = cuda_stream(torch, device)
    return structure, key, tensor


def _refuse_torch(torch: Any, tensor: Any, dtype: int | None) -> TensorTypeError:
    kind = tensor.device.type
    if kind == "meta":
        return _refuse("a torch tensor on the meta device", "expected one with data")
    if kind not in ("cpu", "cuda"):
        return _refuse(
            f"a torch tensor on {tensor.device}", "expected one on the CPU or a CUDA device; observe tensor.cpu() instead"
        )
    if tensor.is_nested:
        return _refuse("a nested torch tensor", "expected a plain one; observe its values() or to_padded_tensor()")
    if tensor.layout is not torch.strided:
        return _refuse(f"a torch tensor of layout {tensor.layout}", "expected torch.strided; observe its values or to_dense()")
    if dtype is None:
        return _refuse(f"a torch tensor of {tensor.dtype}", f"expected one of {', '.join(_TORCH_DTYPES)}")
    return _refuse(f"a torch tensor of type {type(tensor).__name__}")


def _refuse_unreadable(torch: Any, tensor: Any) -> TensorTypeError:
    if torch.nn.parameter.is_lazy(tensor):
        return _refuse(
            "a parameter of a lazy module without a shape yet", "expected one with data, as it has after the first forward pass"
        )
    if tensor.is_nested:
        return _refuse_torch(torch, tensor, None)
    wrapped = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", None)
    if wrapped is not None and wrapped(tensor):
        return _refuse(
            "a torch tensor inside of vmap, grad or another torch.func transform",
            "expected one outside of it; observe the result",
        )
    return _refuse(f"a torch tensor of type {type(tensor).__name__} without memory of its own", "expected one with data")


def _borrow_numpy(numpy: Any, array: Any) -> Borrowed:
    if isinstance(array, numpy.ma.MaskedArray):
        raise _refuse("a masked NumPy array", "expected one without a mask; observe array.compressed() or array.data")
    array = numpy.asarray(array)
    name = _NUMPY_DTYPES.get(array.dtype.str[1:]) or _EXTENSION_DTYPES.get(array.dtype.name)
    if name is None:
        raise _refuse(f"a NumPy array of dtype {array.dtype}", f"expected one of {', '.join(_TORCH_DTYPES)}")
    if not array.dtype.isnative:
        raise _refuse(
            f"a NumPy array of dtype {array.dtype.str} in non-native byte order",
            "expected native order; observe array.astype(array.dtype.newbyteorder('='))",
        )
    size = array.itemsize
    if not array.flags.aligned or any(stride % size for stride in array.strides):
        array = numpy.array(array, order="C")
    structure = _structure(DTYPES[name], array.shape, [stride // size for stride in array.strides])
    structure.data = array.ctypes.data
    return structure, None, array


def _borrow_foreign(value: Any) -> Borrowed:
    """An object of another library, through DLPack or __array_interface__."""
    name = type(value).__name__
    if isinstance(value, type):
        raise _refuse(f"the type {value.__name__}")
    if hasattr(value, "__cuda_array_interface__") and "torch" not in sys.modules:
        raise _refuse(
            f"a {name} in memory of a GPU",
            "expected torch to be imported, which can read it; import torch, or copy it to the CPU",
        )
    try:
        if hasattr(value, "__cuda_array_interface__"):
            torch = sys.modules["torch"]
            return _borrow_torch(torch, torch.as_tensor(value, device="cuda"))
        if hasattr(value, "__dlpack__"):
            return _borrow_dlpack(value)
        if hasattr(value, "__array_interface__"):
            import numpy

            return _borrow_numpy(numpy, numpy.asarray(value))
        if isinstance(value, BUFFERS):
            return _borrow_buffer(memoryview(value))
    except TensorTypeError:
        raise
    except Exception as error:
        raise _refuse(f"a {name} that cannot be read ({type(error).__name__}: {error})") from error
    raise _refuse(f"a {name}")


def _borrow_buffer(view: memoryview) -> Borrowed:
    """Numbers without any library of arrays: array.array, or a memoryview, which may have several dimensions."""
    kind = _BUFFER_KINDS.get(view.format.removeprefix("@"))
    if kind is None:
        raise _refuse(f"a memoryview of format {view.format!r}", f"expected one of {' '.join(_BUFFER_KINDS)}")
    name = kind if kind == "bool" else f"{kind}{8 * view.itemsize}"
    shape = view.shape or ()
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    # Only memory that may be written and has no gaps shows its address.
    memory: Any = view if view.c_contiguous and not view.readonly else bytearray(view.tobytes())
    structure = _structure(DTYPES[name], shape, strides)
    held = (ctypes.c_char * view.nbytes).from_buffer(memory) if view.nbytes else None
    structure.data = ctypes.addressof(held) if held is not None else 0
    return structure, None, (held, memory)


def _borrow_dlpack(value: Any) -> Borrowed:
    if hasattr(value, "__dlpack_device__"):
        device = int(value.__dlpack_device__()[0])
        if device not in _DLPACK_CPU and not (device == _DLPACK_CUDA and "torch" in sys.modules):
            found = f"a {type(value).__name__} on DLPack device type {device}"
            raise _refuse(found, "expected memory of the CPU (1 or 3), or of CUDA (2) with torch imported; copy it there first")
    torch = sys.modules.get("torch")
    if torch is not None:
        return _borrow_torch(torch, torch.from_dlpack(value))
    import numpy

    return _borrow_numpy(numpy, numpy.from_dlpack(value))
