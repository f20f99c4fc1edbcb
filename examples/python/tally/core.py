"""Objects, values and calls: what tally exports."""
import collections.abc
import contextlib
import ctypes as C
import functools
import operator
import sys

import numpy as np

from .arrays import (BF16, NUMPY, array_of, decoded, dtype_of, encoded, fitting, int64s, listed,
                     message, numbers, path_of, shape_of, view, whole)
from .face import face, is_struct, lib

EXPORTS = {name[3:]: value for name, value in face.constants.items()}  # F32, MEAN, ...
_T = face.types
_UNKNOWN = _T["tl_c_data"]()  # numpy has checked what a C compiler would
_TEXT = 4096  # bytes of text that C writes
_INTERNED = {}  # text that C may borrow for long: places, names


class Error(RuntimeError):
    """What tl_error says; .status is the name, such as "TL_ESHAPE"."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = lib.tl_status_name(status).decode()

    def __reduce__(self):  # RuntimeError's would make it of its message alone
        return type(self), (face.constants[self.status], *self.args), vars(self)


def _intern(text, encode=encoded):
    return _INTERNED.setdefault((text, encode), encode(text))


def _place():
    """File and line of the nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__package__") == __package__:
        frame = frame.f_back
    return _intern(frame.f_code.co_filename), frame.f_lineno


class _Object:
    """A tape, model, optimizer, graph: freed when nobody holds it, if it is ours."""
    _p, _owned, holds = None, False, ()

    def _own(self, p, *holds):
        self._p, self._owned, self.holds = p, True, holds
        self._check()
        return self

    def _check(self):
        if lib.tl_failed(self._p):
            status, text = lib.tl_error_status(self._p), message(lib.tl_error(self._p))
            held = isinstance(self, Tape) and lib.tl_accumulating_count(self._p)
            if self._p:
                lib.tl_error_clear(self._p)
            if held and not lib.tl_accumulating_count(self._p):
                text += "; the gradients of this batch are dropped: grad_clear() begins it anew"
                self._dropped = text
            raise Error(status, text)

    def __reduce_ex__(self, protocol):  # a copy would free what it does not own
        raise TypeError("%s owns memory of C: it is neither copied nor pickled"
                        % type(self).__name__)

    def __del__(self):
        if self._owned and self._p and lib is not None:
            lib.tl_free_objects((C.c_void_p * 1)(self._p), 1)


class Model(_Object):
    """A model: named parameters and buffers, as a dict has them. Model(seed=1)"""

    def __init__(self, seed=0):
        self._own(lib.tl_model_new_with(_struct(_T["tl_model_options"], {"seed": seed})))

    def names(self):
        return [decoded(lib.tl_model_at(self._p, i).name) for i in range(self.count())]

    keys = names
    items, values, get = (getattr(collections.abc.Mapping, f) for f in ("items", "values", "get"))

    def freeze(self, prefix, frozen=True):
        """Freezes the parameters whose names begin with prefix (False: trains them again); returns
        how many there are."""
        return _freeze(self, prefix, frozen)

    def __iter__(self):
        return iter(self.names())

    def __len__(self):
        return self.count()

    def __bool__(self):
        return True  # of none it is a model too

    def __contains__(self, name):
        return name in self.names()

    def _named(self, name):
        for i in range(self.count()):
            one = lib.tl_model_at(self._p, i)
            if one.name == encoded(name):
                return one
        raise KeyError(name)

    def __getitem__(self, name):
        """A read-only view of a named tensor (of bf16: its bits); it keeps the model alive."""
        return view(self._named(name).array, self)

    def __setitem__(self, name, value):
        """Writes it in place."""
        one = self._named(name)
        a = fitting(listed(value), one.array.dtype)
        if a.shape != tuple(one.array.dim[:one.array.ndim]):
            raise ValueError("%s has shape %r, not %r" % (
                name, tuple(one.array.dim[:one.array.ndim]), a.shape))
        if lib.tl_write(self._p, one.tensor, a.ctypes.data, a.nbytes):
            self._check()


class Opt(_Object):
    """An optimizer, made by model.sgd, .adam or .adamw(lr=...)."""

    def step(self, tape=None):
        """Updates the parameters with the tape's gradients; not with what is left of a batch."""
        if getattr(tape, "_dropped", None):
            raise Error(face.constants["TL_EUSAGE"], "step: " + tape._dropped)
        _step(self, tape)

    def __setattr__(self, name, value):
        if callable(getattr(Opt, name, None)):  # opt.lr = 0.1 would change no rate
            raise AttributeError("%s is a method; lr_set(rate) sets the rate" % name)
        object.__setattr__(self, name, value)


class Tape(_Object):
    """A tape over a model, or over none."""
    _dropped = None  # the error that dropped what micro-batches before it had added

    def grad_clear(self):
        """Drops all gradients; after an error that has dropped those of a batch, begins it anew."""
        self._dropped = None
        lib.tl_grad_clear(self._p)
        self._check()

    kept = None  # of a trace: what its graph may borrow of the calls made here

    def __init__(self, model=None):
        self.model = _typed("tl_model *", model)
        self._own(lib.tl_tape_new(model._p if model else None), model)

    @classmethod
    def _borrow(cls, p, model, kept):
        tape = cls.__new__(cls)
        tape._p, tape.model, tape.kept = p, model, kept
        return tape

    def _keep(self, *borrowed):
        if self.kept is not None:
            self.kept.extend(x for x in borrowed if not isinstance(x, Tensor))

    def _at(self, name):
        return _T["tl_at"](self._p, *_place(), _intern(name))

    def _tensor(self, c):
        self._check()
        return Tensor(self, c)

    def data(self, array, dtype=None):
        """A tensor with a copy of an array, in its own dtype (ints become I64) or in that one. Of
        BF16, floats are rounded and uint16 are its bits."""
        a, dtype = numbers(array, dtype)
        return self._tensor(lib.tl_data_tape_at(self._p, a.ctypes.data, _UNKNOWN, dtype,
                                                shape_of(a.shape), *_place()))

    def constant(self, array, dtype=None):
        """The same of what never changes: a compiled function keeps it."""
        a, dtype = numbers(array, dtype)
        return self._tensor(lib.tl_constant_at(self._at("constant"), a.ctypes.data, _UNKNOWN, dtype,
                                               shape_of(a.shape)))

    def bound(self, array, dtype=None):
        """The same of what an array holds now or, in a compiled function, whenever that is called,
        which keeps the array. Lists and numbers are copied."""
        a, dtype = numbers(array, dtype)
        if not isinstance(array, (list, tuple, int, float, np.generic)) and a.size \
                and not np.shares_memory(a, np.asarray(array)):
            raise TypeError("bound: an array is read where it lies: one of %s in rows is wanted, "
                            "not a copy of this %s" % (a.dtype, type(array).__name__))
        self._keep(a)
        return self._tensor(lib.tl_bound_at(self._at("bound"), a.ctypes.data, _UNKNOWN, dtype,
                                            shape_of(a.shape)))

    def watch(self, x, to):
        """Writes the value of x, of one element, to an array of one float64: now or, in a compiled
        function, after each call of that, which keeps the array."""
        if not (isinstance(to, np.ndarray) and to.dtype == np.float64 and to.size == 1
                and to.flags.writeable and to.flags.aligned):
            raise TypeError("watch: an array of one float64 is wanted, not %r" % (to,))
        self._keep(to)
        lib.tl_watch_at(self._at("watch"), _c(_T["tl_tensor"], x, []), to.ctypes.data)
        self._check()

    def item(self, x):
        """The value of one element: an int of I64, else a float."""
        value = _item(self, x)  # a double
        x = x if isinstance(x, Tensor) else Tensor(self, x)
        return x.numpy().item() if x.dtype == EXPORTS["I64"] else value

    @contextlib.contextmanager
    def under(self, *modes):
        """with t.under(tally.NO_GRAD): ..."""
        depth = lib.tl_mode_push(self._p, functools.reduce(operator.or_, modes, 0))
        self._check()
        try:
            yield self
        finally:
            lib.tl_mode_pop(self._p, depth)

    def gradients(self, y, xs, cotangent=None):
        """The gradients of y by each of xs, recorded so that they can be differentiated again."""
        xs = [xs] if isinstance(xs, Tensor) else list(xs)
        dx = [Tensor(self) for _ in xs]
        self.gradients_(y, xs, cotangent, dx)
        return dx


class Tensor:
    """A handle of a tape's; Tensor(t) is one to be filled by a call."""
    __slots__ = "tape", "c"
    __array_ufunc__ = None  # numpy leaves operators to us, instead of making arrays of tensors
    __hash__ = object.__hash__

    def __init__(self, tape, c=None):
        if not isinstance(tape, Tape):
            raise TypeError("Tensor(t) is of a tape, not of %r: t.data(a) makes one of a" % (tape,))
        self.tape, self.c = tape, c if c is not None else _T["tl_tensor"]()

    def _array(self):
        a = _T["tl_array"]()
        if not lib.tl_array_of(self.tape._p, self.c, C.byref(a)):
            if self.c.owner:
                self.item()  # says what is the matter
            raise ValueError("a tensor that no call has filled")
        return a

    shape = property(lambda self: tuple((a := self._array()).dim[:a.ndim]))
    dtype = property(lambda self: self._array().dtype)
    ndim = property(lambda self: self._array().ndim)

    def numpy(self):
        """A copy; of bf16 in float32, which holds it exactly."""
        a = self._array()
        out = np.empty(tuple(a.dim[:a.ndim]), NUMPY[a.dtype])
        self.tape.keep(self, C.c_void_p(out.ctypes.data), {}, out.nbytes)
        return out if a.dtype != BF16 else (
            out.astype(np.uint32).ravel() << 16).view(np.float32).reshape(out.shape)

    def __array__(self, dtype=None, copy=None):
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def item(self):
        """The value of one element: an int of I64, else a float."""
        return self.tape.item(self)

    def tolist(self):
        return self.numpy().tolist()

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __format__(self, spec):
        return format(self.item(), spec) if spec else str(self)

    @property
    def T(self):
        """The transpose of two dims; mT is that of the last two of more."""
        if self.ndim > 2:
            raise ValueError("T of %d dims: mT swaps the last two, permute any" % self.ndim)
        return self.mT if self.ndim == 2 else self

    mT = property(lambda self: self.transpose(-2, -1))

    def unsqueeze(self, dim):
        """A view with a dim of 1 more, number dim of the result."""
        shape = list(self.shape)
        shape.insert(range(len(shape) + 1)[dim], 1)
        return self.reshape(shape)

    def squeeze(self, dim):
        """A view without dim, which is of 1: which others are may depend on the batch."""
        shape = list(self.shape)
        if shape.pop(dim) != 1:
            raise ValueError("squeeze: dim %d of %r is not 1" % (dim, self.shape))
        return self.reshape(shape)

    def flatten(self, start=0, end=-1):
        """Dims start to end as one."""
        shape = self.shape or (1,)
        first, last = (range(len(shape))[i] for i in (start, end))
        if first > last:
            raise ValueError("flatten: dim %d comes after dim %d" % (first, last))
        return self.reshape([*shape[:first], int(np.prod(shape[first:last + 1])),
                             *shape[last + 1:]])

    def __len__(self):
        if not self.shape:
            raise TypeError("a tensor of 0 dims has no length")
        return self.shape[0]

    __iter__ = None  # v, i = x.topk(2, 1) would take two rows apart

    def __getitem__(self, index):
        """x[0], x[:, -2:], x[..., None]: numpy's, as views. A tensor of I64, a list or an array of
        whole numbers takes these of its dim; it may stand beside slices alone."""
        index = index if isinstance(index, tuple) else (index,)
        rest = [i for i, one in enumerate(index) if one is Ellipsis] or [len(index)]
        full = self.ndim - sum(one is not None and one is not Ellipsis for one in index)
        if full < 0 or len(rest) > 1:
            raise IndexError("too many indices for %d dims, or more than one ..." % self.ndim)
        index = index[:rest[0]] + (slice(None),) * full + index[rest[0] + 1:]
        many = [isinstance(one, (Tensor, list, np.ndarray)) for one in index]
        if any(many) and sum(not isinstance(one, slice) for one in index) > 1:
            raise IndexError("ids may stand beside slices alone: index in two steps")
        y, dim = self, 0
        for one, ids in zip(index, many):
            if one is None:
                y = y.unsqueeze(dim)
            elif ids:
                y = y._taken(dim, one)
            elif isinstance(one, slice):
                if one != slice(None):
                    y = y.slice(dim, *(other if given is None else given for given, other in (
                        (one.start, 0), (one.stop, 2**63 - 1), (one.step, 1))))
            elif isinstance(one, (bool, np.bool_)):
                raise TypeError("%r is no index" % (one,))
            else:
                y = y.select(dim, one)
                continue
            dim += 1
        return y

    def _taken(self, dim, ids):
        """Slices by number along a dim: of dim 0 as rows of a table, so that samples stay apart."""
        if not isinstance(ids, Tensor):
            a = listed(ids)
            if a.dtype.kind in "iu":
                a = np.where((a < 0) & (a >= -self.shape[dim]), a + self.shape[dim], a)
            ids = self.tape.constant(a if a.size else a.astype(np.int64))
        if ids.dtype != EXPORTS["I64"]:
            raise TypeError("ids of I64 are wanted as an index; for a mask use where, masked_fill "
                            "or a product: the shape of a selection would depend on values")
        shape = self.shape
        if dim == 0:
            y = self.reshape([shape[0], int(np.prod(shape[1:]))]).embedding(ids)
        else:
            y = self.index_select(dim, ids.reshape([int(np.prod(ids.shape))]))
        return y.reshape(shape[:dim] + ids.shape + shape[dim + 1:])

    def _number(self, x):
        """A number as a tensor of this one's dtype."""
        if self.dtype == EXPORTS["I64"] and _is_large(x):  # no double holds it
            return self.tape.constant(np.int64(x))
        return self.tape.scalar(self.dtype, x)

    def __bool__(self):
        return self.item() != 0

    @property
    def grad(self):
        """The gradient of a parameter or marked leaf after backward, or None."""
        g = self.tape.grad(self)
        return g if g.c.owner else None

    def __repr__(self):
        a = _T["tl_array"]()  # a call that fails would drop the batch's gradients
        if not lib.tl_array_of(self.tape._p, self.c, C.byref(a)):
            return "Tensor(%s)" % ("from before the tape was reset" if self.c.owner else
                                   "that no call has filled")
        if not a.data and 0 not in a.dim[:a.ndim]:
            return "Tensor(of shape %r: its contents are freed, changed, or yet to come in a " \
                "compiled function)" % (tuple(a.dim[:a.ndim]),)
        return "Tensor(%s)" % np.array2string(self.numpy(), prefix="Tensor(")

    def _with(self, name, other, swapped=False):
        if not isinstance(other, Tensor):
            if isinstance(other, np.ndarray) and other.ndim > 0:
                raise TypeError("an array is no operand: t.data(a) makes a tensor of it")
            other = other[()] if isinstance(other, np.ndarray) else other
            if not _is_real(other):
                if isinstance(other, (complex, np.number)):
                    raise TypeError("a real number is wanted, not %r" % (other,))
                return NotImplemented
            kind, wide = self.dtype, EXPORTS["F32"]
            if kind == EXPORTS["I64"] and _is_large(other):
                other = self._number(other)
            elif kind in (EXPORTS["I64"], EXPORTS["BOOL"]) and not _is_whole(other):
                raise TypeError("%r would be cut: cast the tensor to a float dtype" % (other,))
            elif name != "matmul" and not _holds(kind, other):
                y = self.tape.cast(self, wide)._with(name, other, swapped)
                return self.tape.cast(y, kind) if y.dtype == wide else y
            else:
                other = self.tape.scalar(kind, other)
        return getattr(self.tape, name)(*((other, self) if swapped else (self, other)))

    def __neg__(self):
        return self.tape.neg(self)

    def __pos__(self):
        return self

    def __abs__(self):
        return self.tape.abs(self)

    def __invert__(self):
        return self.tape.logical_not(self._bools())

    def __and__(self, other):
        return self.tape.logical_and(self._bools(), Tensor._bools(other))

    def __or__(self, other):
        return self.tape.logical_or(self._bools(), Tensor._bools(other))

    def _bools(self):
        if not isinstance(self, Tensor) or self.dtype != EXPORTS["BOOL"]:
            raise TypeError("&, | and ~ take tensors of BOOL; logical_and, ... other dtypes, too")
        return self

    def __pow__(self, c):
        return self.tape.pow(self, c)


for _name in "eq", "ne", "lt", "le", "gt", "ge":
    setattr(Tensor, "__%s__" % _name, lambda a, b, op=_name: a._with(op, b))
for _name, _op in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "matmul": "matmul",
                   "floordiv": "floor_divide", "mod": "remainder"}.items():
    setattr(Tensor, "__%s__" % _name, lambda a, b, op=_op: a._with(op, b))
    setattr(Tensor, "__r%s__" % _name, lambda a, b, op=_op: a._with(op, b, True))


# ---- values of C ----

def _typed(kind, value):
    """An object of ours, where C wants a pointer to one of that kind: anything else it would use as
    an address. A list is one of tensors, structs or sizes."""
    if kind == "tl_dtype":
        return dtype_of(value)
    if kind == "int64_t *" and isinstance(value, (list, tuple)):
        return int64s(value, len(value))
    wanted = {"tl_tape *": Tape, "tl_model *": Model, "tl_opt *": Opt}.get(kind)
    if wanted is not None and value is not None and not isinstance(value, wanted):
        raise TypeError("%r is no %s" % (value, wanted.__name__))
    if wanted is None and isinstance(value, _Object) and "*" in kind:
        raise TypeError("a %s is wanted, not %r" % (kind, value))
    return value


_OF_DIMS = {"kernel", "stride", "padding", "dilation"}
_DTYPES = {"dtype", "as"}  # fields


def _struct(ctype, value):
    if isinstance(value, ctype):
        return value
    if not isinstance(value, collections.abc.Mapping):
        fields = ", ".join(name for name, *_ in ctype._fields_)
        raise TypeError("a dict of %s is wanted, not %r" % (fields, value))
    out = ctype()
    _fill(out, **value)
    return out


def _fill(self, *values, **named):
    """a struct's __init__: its first fields, as ctypes has it, and others by name"""
    C.Structure.__init__(self, *values)
    ctype, fields = type(self), dict(self._fields_)
    for name, v in named.items():
        if name not in fields:
            raise TypeError("%s has no field %s; it has %s" % (ctype.__name__, name,
                                                               ", ".join(fields)))
        if name in _OF_DIMS and not isinstance(v, (list, tuple)):
            v = [v] * fields[name]._length_  # one number for all dims
        try:
            v = dtype_of(v) if name in _DTYPES else v
            setattr(self, name, _c(fields[name], v, self.__dict__.setdefault("kept", [])))
        except (TypeError, ValueError) as e:
            kind = TypeError if isinstance(e, TypeError) else ValueError
            raise kind("%s: %s" % (name, e)) from None


def _is_real(x):
    """np.number has complex numbers and times too."""
    return isinstance(x, (int, float, np.integer, np.floating, np.bool_)) and not isinstance(
        x, np.timedelta64)


def _is_large(x):
    """a whole number beyond what doubles hold one by one"""
    return isinstance(x, (int, np.integer)) and 2**53 <= abs(int(x)) and -2**63 <= x < 2**63


def _holds(kind, x):
    """A number beside a tensor of a half type is computed with in F32, as the constants of ops are:
    false if the half type would round it."""
    if kind not in (EXPORTS["F16"], EXPORTS["BF16"]) or x != x:
        return True
    x = _double(x)
    with np.errstate(over="ignore"):
        one = np.float32(x)
        return float(np.float16(x)) == x if kind == EXPORTS["F16"] else (
            float(one) == x and one.view(np.uint32) & 0xffff == 0)


def _is_whole(x):
    """and a double"""
    try:
        return float(x) == int(x)
    except (OverflowError, ValueError):
        return False


def _double(x):
    if not _is_real(x):
        raise TypeError("a number is wanted, not %r" % (x,))
    try:
        made = float(x)
    except OverflowError:
        raise ValueError("a whole number is too large for a double, which C takes here") from None
    if isinstance(x, (int, np.integer)) and -2**63 <= x < 2**63 and int(made) != x:
        raise ValueError("%d is no double, which C takes here; float() makes it %d" % (x, made))
    return made


_ADDRESSES = C.c_void_p, C.Array, C._Pointer, C._CFuncPtr, type(C.byref(C.c_int()))
_WHOLE = {C.c_int, C.c_uint, C.c_int64, C.c_uint64, C.c_int32, C.c_uint32, C.c_size_t}


def _c(ctype, value, keep):
    """value as ctype; what must live as long as the call goes into keep."""
    if ctype is _T["tl_shape"]:
        return shape_of(value)
    callback = isinstance(ctype, type) and issubclass(ctype, C._CFuncPtr)
    if value is None and not callback and ctype not in _WHOLE and ctype is not C.c_double:
        return ctype() if is_struct(ctype) else ctype() if ctype in (C.c_bool,) else None
    if ctype is _T["tl_tensor"]:
        if isinstance(value, ctype):  # a model's: of no tape
            return value
        if not isinstance(value, Tensor):
            raise TypeError("a Tensor is wanted, not %r" % (value,))
        keep.append(value)
        return value.c
    if is_struct(ctype):
        return _struct(ctype, value)
    if isinstance(value, _Object) and ctype is C.c_void_p:
        keep.append(value)
        return value._p
    if ctype is C.c_char_p:
        return _intern(value)
    if ctype in _WHOLE:
        if isinstance(value, (float, str, Tensor, type(None))):
            raise TypeError("a whole number is wanted, not %r" % (value,))
        value = operator.index(value)
        if ctype(value).value != value:  # ctypes would cut it
            raise ValueError("%d is too large: a number of %d bits is wanted" % (
                value, 8 * C.sizeof(ctype)))
        return value
    if ctype is C.c_double:
        return _double(value)
    if ctype is C.c_bool and not isinstance(value, (int, np.integer, np.bool_)):
        raise TypeError("True or False is wanted, not %r" % (value,))
    if isinstance(ctype, type) and issubclass(ctype, C.Array):
        value = value if isinstance(value, (list, tuple)) else [value]
        if len(value) > ctype._length_:
            raise ValueError("%d are too many: at most %d" % (len(value), ctype._length_))
        return ctype(*[_c(ctype._type_, v, keep) for v in value])
    if isinstance(ctype, type) and issubclass(ctype, C._Pointer):
        of = ctype._type_
        if isinstance(value, Tensor):
            keep.append(value)
            return C.pointer(value.c)
        many = value if isinstance(value, (list, tuple)) else [value]
        if of is _T["tl_array"]:
            many = [whole(v) for v in many]
            keep.extend(many)
            many = [array_of(v) for v in many]
        array = (of * max(len(many), 1))(*[_c(of, v, keep) for v in many])
        if many and isinstance(many[0], of):  # a struct that C may write to
            return C.pointer(many[0]) if len(many) == 1 else array
        keep.append(array)
        return C.cast(array, ctype)
    if (callback or ctype is C.c_void_p) and not isinstance(
            value, ctype if callback else _ADDRESSES):  # of a number or bytes, ctypes makes one
        raise TypeError("an address that ctypes made is wanted, not %r" % (value,))
    keep.append(value)
    return value


_PATHS = {"path", "folder"}  # parameters that are files
_ALSO = {"dim": ("dims",), "axis": ("dim", "dims"), "keepdim": ("keepdims",)}  # others' names


def _is_options(ctype, kind):
    return is_struct(ctype) and kind not in ("tl_at", "tl_tensor", "tl_shape", "tl_array")


def _doc(f):
    """C's prototype, and the keywords that its options are."""
    keywords = [k for _, ctype, kind in f.params if _is_options(ctype, kind)
                for k, *_ in ctype._fields_]
    return f.prototype + ("; keywords: " + ", ".join(keywords) if keywords else "")


def _call(f, tape, args, kwargs):
    """Calls f for an object of Python; tape stands for a place or a tape, model for a model."""
    args, values, keep, hexes, lists = list(args), [], [], [], []
    before, n, rooms = None, 0, {}
    for also in _ALSO.keys() & kwargs.keys():
        ours = [p[0] for p in f.params if p[0] in _ALSO[also] and p[0] not in kwargs]
        if ours and also not in {p[0] for p in f.params}:
            kwargs[ours[0]] = kwargs.pop(also)
    for name, ctype, kind in f.params:
        given = name in kwargs
        if kind in ("tl_at", "tl_tape *"):
            if tape is None:
                tape = kwargs.pop("tape", None) or (args.pop(0) if args else None)
                if not isinstance(tape, Tape):
                    raise TypeError("%s: a tape is wanted, not %r; %s" % (_short(f.name), tape,
                                                                          f.prototype))
            value = tape._p if kind != "tl_at" else tape._at(_short(f.name))
        elif kind == "tl_model *" and f.params[0][2] == "tl_at" and not given:
            value = tape.model._p if tape.model else None
        elif _is_options(ctype, kind):
            fields = {k: kwargs.pop(k) for k, *_ in ctype._fields_ if k in kwargs}
            if args and isinstance(args[0], (dict, ctype)):
                value = _struct(ctype, args.pop(0))
            else:
                if args and isinstance(args[0], (bool, np.bool_)):
                    raise TypeError("%s: options are keywords; the first is %s, which %r would set"
                                    % (_short(f.name), ctype._fields_[0][0], args[0]))
                if args:  # as C's macros: what follows goes to the first field
                    fields[ctype._fields_[0][0]] = args.pop(0)
                value = _struct(ctype, fields)
        elif name in ("file", "line") and kind in ("char *", "int") and f.params[-1][0] == "line":
            value = _place()[name == "line"]
        elif kind.startswith("char[") or name == "buf":
            value = C.create_string_buffer(int(kind[5:-1]) if name != "buf" else _TEXT)
            hexes.append(value)
            keep.append(value)
            value = C.cast(value, ctype)
        elif name == "cap":
            value = _TEXT
        elif name in ("n", "n_in", "n_out") and before is not None and not given:
            value = len(before)
        elif given or args:
            if kind == "tl_shape" and len(args) > 1 and f.params[-1][0] == name and not given:
                args = [args]  # reshape(2, 3)
            python = kwargs.pop(name) if given else args.pop(0)
            try:
                value = _intern(python, path_of) if name in _PATHS and python is not None else \
                    _c(ctype, _typed(kind, python), keep)
            except (TypeError, ValueError) as e:
                raise type(e)("%s: %s: %s; %s" % (_short(f.name), name, e, f.prototype)) from None
            before = None
            if kind in ("tl_tensor *", "tl_array *") and python is not None:
                rooms[name] = len(python) if isinstance(python, (list, tuple)) else 1
            if "*" in kind and kind != "char *" and (python is None or isinstance(
                    python, (list, tuple))):
                before = python or []
                if kind == "tl_tensor *" and python is not None:
                    lists.append((before, value))
        elif "*" in kind or kind in ("tl_tensor", "_Bool") or name == "dims":
            value = shape_of(None) if name == "dims" else _c(ctype, None, keep)
            before = [] if "*" in kind else None
        else:
            raise TypeError("%s: %s is missing; %s" % (_short(f.name), name, f.prototype))
        values.append(value)
        if name in ("n", "n_in"):
            n = value
        elif kind == "tl_loader *" and value:
            n = value.contents.n
    if args or kwargs:
        raise TypeError("%s does not take %s; %s" % (_short(f.name), ", ".join(
            list(kwargs) or ["so many arguments"]), _doc(f)))
    for name, room in rooms.items():
        if room < n:
            raise ValueError("%s: %s: %d are wanted, not %d; %s" % (_short(f.name), name, n, room,
                                                                  f.prototype))
    result = getattr(lib, f.name)(*values)
    if tape is not None:
        tape._keep(*keep)
    for many, array in lists:
        for x, c in zip(many, array):
            x.c = _handle(c)
    if is_struct(f.result):
        result.kept = keep  # it may borrow what it was made of
    return result, hexes, tape


def _handle(c):
    return _T["tl_tensor"](c.owner, c.index, c.generation)


def _short(name):
    name = name[3:]
    for tail in ("_tape_at", "_model_at", "_at", "_with"):
        if name.endswith(tail):
            return name[:-len(tail)]
    return name


def _method(f):
    """A function that calls f as a method of self, whichever of f's objects that is."""
    def method(self, *args, **kwargs):
        tape = self if isinstance(self, Tape) else getattr(self, "tape", None)
        if not isinstance(self, Tape):
            args = (self,) + args
        result, hexes, used = _call(f, tape, args, kwargs)
        for one in {self if isinstance(self, _Object) else used, used} - {None}:
            one._check()
        if hexes:
            return message(hexes[0].value)
        if f.kind == "tl_tensor":
            return Tensor(used, result) if used else result
        if f.kind == "tl_shape":
            return tuple(result.dim[:result.ndim])
        if f.kind == "tl_opt *":
            return Opt.__new__(Opt)._own(result, self)
        if isinstance(result, bytes):
            return message(result)
        return None if f.kind == "tl_status" else result
    method.__name__ = method.__qualname__ = _short(f.name)
    method.__doc__ = _doc(f)
    return method


_item = _method(face.functions["tl_item_at"])

# What takes these is for C alone: Python cannot make one, and C would use what is left out.
_OF_C = {"tl_op *", "tl_kernel *", "tl_observer *", "tl_recorder *", "tl_function *", "tl_program *",
         "tl_tensor[8]"}


def _bind():
    owners = {"tl_tape *": (Tape, "tape_"), "tl_model *": (Model, "model_"),
              "tl_opt *": (Opt, "opt_"), "tl_at": (Tape, "")}
    for f in face.functions.values():
        if not f.params or not hasattr(lib, f.name) or _OF_C & {p[2] for p in f.params}:
            continue
        owner, prefix = owners.get(f.params[0][2], (None, ""))
        if owner is None:
            continue
        name = _short(f.name)
        name = name[len(prefix):] if name.startswith(prefix) else name
        name = name[:-4] if f.kind == "tl_opt *" and name.endswith("_new") else name
        if f.name == "tl_gradients_at":
            name = "gradients_"
        if name not in owner.__dict__:
            setattr(owner, name, _method(f))
        takes = [p[2] for p in f.params[1:2]]
        if f.params[0][2] == "tl_at" and takes in (["tl_tensor"], ["tl_tensor *"]):
            if name not in Tensor.__dict__ and takes == ["tl_tensor"]:
                setattr(Tensor, name, getattr(Tape, name))
            EXPORTS.setdefault(name, _free(name, f))
    for name, ctype in _T.items():  # tally.llama_config(vocab=...), ...
        if is_struct(ctype) and name.startswith("tl_"):
            ctype.__init__ = _fill
            EXPORTS.setdefault(name[3:], ctype)


def _free(name, f):
    def function(x, *args, **kwargs):
        many = x if isinstance(x, (list, tuple)) else (x, *args)
        first = next((one for one in many if isinstance(one, Tensor)), None)
        if first is None:
            raise TypeError("%s: a Tensor is wanted, not %r" % (name, x))
        return getattr(first.tape, name)(x, *args, **kwargs)
    function.__name__, function.__doc__ = name, _doc(f)
    return function


def _operands(name):
    """An op whose last two operands may be a tensor and a number."""
    c = getattr(Tape, name)

    def method(self, *args, **kwargs):
        tape, args = _taped(self, args)
        if len(args) > 1 and not kwargs:
            *cond, a, b = args
            if isinstance(a, Tensor) and _is_real(b):
                return c(tape, *cond, a, a._number(b)) if cond else a._with(name, b)
            if isinstance(b, Tensor) and _is_real(a):
                return c(tape, *cond, b._number(a), b) if cond else b._with(name, a, True)
        return c(tape, *args, **kwargs)
    return functools.wraps(c)(method)


def _taped(self, args):
    return (self, args) if isinstance(self, Tape) else (self.tape, (self, *args))


def _pieces(name, count):
    """An op that sets out to pieces of x: where out is left out, a list of them."""
    c = getattr(Tape, name)

    def method(self, *args, **kwargs):
        tape, args = _taped(self, args)
        if len(args) == 2 and set(kwargs) == {"dim"}:
            args += (kwargs.pop("dim"),)
        if len(args) != 3 or kwargs:
            return c(tape, *args, **kwargs)
        x, by, dim = args
        if name == "split" and isinstance(by, (list, tuple)):
            return tape.split_sizes(x, by, dim)
        sizes = dict(enumerate(x.shape))
        size = sizes.get(dim if dim >= 0 else dim + len(sizes), 0)
        out = [Tensor(tape) for _ in range(max(count(size, by), 0))]
        c(tape, *args, out)  # says what is the matter with them
        return out
    return functools.wraps(c)(method)


def _recurrent(cell):
    def method(self, name, x, hidden, **options):
        return self.recurrent(name, x, hidden, cell, **options)
    method.__doc__ = Tape.recurrent.__doc__
    return method


_freeze = _method(face.functions["tl_model_freeze"])
_step = _method(face.functions["tl_step_at"])
_bind()
for _name in ("add", "sub", "mul", "div", "maximum", "minimum", "floor_divide", "remainder", "eq",
              "ne", "lt", "le", "gt", "ge", "where"):
    setattr(Tape, _name, _operands(_name))
    setattr(Tensor, _name, getattr(Tape, _name))
for _name, _count in {"split": lambda size, by: -(-size // by) if by > 0 else 0,
                      "chunk": lambda size, by: by,
                      "split_sizes": lambda size, by: len(by)}.items():
    setattr(Tape, _name, _pieces(_name, _count))
    setattr(Tensor, _name, getattr(Tape, _name))
for _name, _cell in {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN_TANH"}.items():
    setattr(Tape, _name, _recurrent(EXPORTS[_cell]))
for _name in "threads", "threads_set":
    EXPORTS[_name] = getattr(lib, "tl_" + _name)
