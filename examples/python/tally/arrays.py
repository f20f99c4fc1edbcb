"""Arrays of numpy, shapes, dtypes and text as C has them. Nothing is cut in silence."""
import ctypes as C
import os
import sys

import numpy as np

from .face import face

_T = face.types
_NAMED = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16,
          "I64": np.int64, "BOOL": np.bool_}
NUMPY = {face.constants["TL_" + name]: np.dtype(t) for name, t in _NAMED.items()}
BF16 = face.constants["TL_BF16"]


def shape_of(sizes):
    if sizes is None:
        return _T["tl_shape"](-1)  # TL_ALL
    sizes = (sizes,) if isinstance(sizes, (int, np.integer)) else tuple(sizes)
    if len(sizes) > face.constants["TL_MAX_DIMS"]:
        raise ValueError("%d dims, more than %d" % (len(sizes), face.constants["TL_MAX_DIMS"]))
    return _T["tl_shape"](len(sizes), int64s(sizes, 8))


def int64s(numbers, room):
    """As many of C; ctypes would cut what is too large."""
    for x in numbers:
        if not -2**63 <= x < 2**63:
            raise ValueError("%r is no number of 64 bits" % (x,))
    return (C.c_int64 * room)(*numbers)


def encoded(text):
    """A name as C has it."""
    if not isinstance(text, str):
        raise TypeError("text is wanted, not %r" % (text,))
    return _encoded(text, lambda s: s.encode("utf-8", "surrogateescape"), "UTF-8")


def path_of(path):
    """A path as C has it: the bytes by which Python itself would open it, in any locale."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError("a path is wanted, not %r" % (path,))
    return _encoded(path, os.fsencode, sys.getfilesystemencoding().upper())


def _encoded(text, encode, encoding):
    try:
        made = encode(text)
    except UnicodeEncodeError:
        raise ValueError("%r cannot be written in %s" % (text, encoding)) from None
    if b"\0" in made:
        raise ValueError("%r has a NUL, where C's text ends" % (text,))
    return made


def decoded(text):
    """A name from C."""
    return text.decode("utf-8", "surrogateescape")


def message(text):
    """What C says: it may quote anything, and end within a letter."""
    return text.decode("utf-8", "backslashreplace")


def dtype_of(d):
    if isinstance(d, (int, np.integer)):
        return int(d)
    if d is None:  # of which numpy makes float64
        raise TypeError("a dtype is wanted, not None")
    if isinstance(d, str) and d.upper() in _NAMED:
        return face.constants["TL_" + d.upper()]
    known = [k for k, n in NUMPY.items() if n == np.dtype(d) and k != BF16]
    if not known:
        raise TypeError("no dtype of Tally's is %s" % np.dtype(d))
    return known[0]


def fitting(a, dtype):
    """a in rows, as Tally keeps that dtype. Floats are rounded; nothing is cut in silence."""
    if dtype not in NUMPY:
        raise TypeError("no dtype of Tally's has the number %d" % dtype)
    to = NUMPY[dtype]
    if dtype == BF16 and a.dtype.kind == "f":
        return _bf16(a)
    if dtype == BF16 and a.dtype.newbyteorder("=") != np.uint16:
        raise TypeError("BF16 is given as floats, or as its bits in uint16, not as %s" % a.dtype)
    if a.dtype.kind not in "fiub" or to.kind in "ib" and a.dtype.kind not in "iub":
        raise TypeError("an array of %s is not taken as %s: convert it with astype" % (a.dtype, to))
    if to.kind == "i" and a.dtype.kind == "u" and a.size and int(a.max()) > 2**63 - 1:
        raise ValueError("%d is too large for I64" % a.max())
    return np.ascontiguousarray(a, to).reshape(a.shape)


def _bf16(a):
    """Floats rounded once, to nearest even, as bits. Rounded to odd first, a double's second
    rounding is as good as its only one (Boldo and Melquiond 2008)."""
    shape, a = a.shape, np.ascontiguousarray(a, np.float64).ravel()
    with np.errstate(all="ignore"):
        single = a.astype(np.float32)
    back = single.astype(np.float64)
    bits = (single.view(np.uint32) - (abs(back) > abs(a))) | (back != a)
    bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(a), 0x7fc0, bits).astype(np.uint16).reshape(shape)


def listed(value):
    """value as an array. Of large whole numbers in a list, numpy would make floats, which are other
    numbers."""
    for x in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError("a masked array would lose its mask: take its .data or .filled()")
    a = np.asarray(value)
    if isinstance(value, (list, tuple, int)) and a.dtype.kind in "fuO" and (
            a.dtype.kind == "O" or a.itemsize > 4 and (abs(a) >= 2.0**53).any()):
        each = np.asarray(value, object)
        whole = [int(x) for x in each.flat if isinstance(x, (int, np.integer, np.bool_))]
        for x in whole:
            if not -2**63 <= x < 2**63:
                raise ValueError("%d is too large for I64" % x)
            if len(whole) < each.size and int(float(x)) != x:
                raise ValueError("%d among floats would be cut to %d" % (x, float(x)))
        if len(whole) == each.size:
            return each.astype(np.int64)
    return a


def numbers(array, dtype):
    """As an array of a dtype of Tally's: its own (ints become I64) or that one; and the dtype."""
    a = listed(array)
    if dtype is None and a.dtype.kind in "iu":
        dtype = face.constants["TL_I64"]
    elif dtype is None:
        dtype = next((d for d, n in NUMPY.items() if n == a.dtype.newbyteorder("=")), None)
        if dtype is None:
            raise TypeError("no dtype of Tally's is %s" % a.dtype)
    dtype = dtype_of(dtype)
    return fitting(a, dtype), dtype


def whole(a):
    """An array whose strides are whole elements: of a structured array's field, a copy."""
    a = listed(a)
    return a if a.flags.aligned and not any(s % max(a.itemsize, 1) for s in a.strides) else a.copy()


def array_of(a):
    """Describes a numpy array (a whole one), borrowing its memory."""
    dtype = next((d for d, n in NUMPY.items() if n == a.dtype), None)
    if dtype is None or a.ndim > 8:
        raise TypeError("no array of Tally's is %s with %d dims" % (a.dtype, a.ndim))
    strides = [s // a.itemsize for s in a.strides]
    return _T["tl_array"](dtype, a.ndim, (C.c_int64 * 8)(*a.shape), (C.c_int64 * 8)(*strides),
                          a.ctypes.data)


def view(a, owner):
    """A read-only numpy array over memory that owner keeps."""
    dtype, shape = NUMPY[a.dtype], tuple(a.dim[:a.ndim])
    n = max(int(np.prod(shape)), 1) * dtype.itemsize if a.data else 1
    memory = (C.c_char * n).from_address(a.data) if a.data else (C.c_char * 1)()
    memory.owner = owner
    memory = np.frombuffer(memoryview(memory).toreadonly(), np.uint8)
    return np.ndarray(shape, dtype, memory, 0, [s * dtype.itemsize for s in a.stride[:a.ndim]])
