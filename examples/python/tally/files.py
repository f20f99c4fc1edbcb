"""Files: safetensors as arrays of numpy, and checkpoints."""
import ctypes as C

from .arrays import array_of, decoded, encoded, message, path_of, view, whole
from .core import Error, Model, Tape, _typed
from .face import face, lib

_T = face.types


def _checkpoints(owner, tail):
    """The methods that C has for owner. Notes are text: {key: value}."""
    def call(self, name, *args):
        getattr(lib, "tl_checkpoint_" + name)(self._p, *args)
        self._check()

    def where(opt, path):
        opt = _typed("tl_opt *", opt)
        return opt._p if opt else None, path_of(path)

    def save(self, opt, path, notes=None):
        """Writes a checkpoint, whole or not at all. opt may be None."""
        listed = [(encoded(k), encoded(str(v))) for k, v in (notes or {}).items()]
        call(self, "save" + tail, *where(opt, path),
             (_T["tl_note"] * max(len(listed), 1))(*listed), len(listed))

    def read(self, name, head, keys):
        if isinstance(keys, str):
            raise TypeError("a list of keys is wanted, not %r" % keys)
        size = face.constants["TL_NOTE_MAX"]
        values = C.create_string_buffer(size * max(len(keys), 1))
        model = self if owner is Model or name != "notes" else self.model
        call(model, name, *head, (C.c_char_p * max(len(keys), 1))(*[encoded(k) for k in keys]),
             values, len(keys))
        return {k: decoded(values.raw[size * i:size * (i + 1)].split(b"\0")[0])
                for i, k in enumerate(keys)}

    def load(self, opt, path, keys=()):
        """Goes on from a checkpoint: the model must have its parameters, from a forward call.
        Returns the notes of these keys, "" where there is none."""
        return read(self, "load" + tail, where(opt, path), keys)

    def notes(self, path, keys):
        """The notes of these keys alone; nothing is loaded."""
        return read(self, "notes", [path_of(path)], keys)

    for f, name in (save, "save" + tail), (load, "load" + tail), (notes, "notes"):
        f.__name__ = f.__qualname__ = "checkpoint_" + name
        setattr(owner, f.__name__, f)


_checkpoints(Model, "")
_checkpoints(Tape, "_tape")


def load_file(path):
    """The tensors of a safetensors file as {name: array} (of bf16: its bits)."""
    file, err = C.c_void_p(), _T["tl_err"]()
    if lib.tl_st_open(C.byref(file), path_of(path), C.byref(err)):
        raise Error(err.status, message(err.message))
    try:
        entries = [lib.tl_st_at(file, i) for i in range(lib.tl_st_count(file))]
        return {decoded(e.name): view(e.array, None).copy() for e in entries}
    finally:
        lib.tl_st_close(file)


def save_file(arrays, path, metadata=None):
    """Writes {name: array} as safetensors, whole or not at all; uint16 is bf16."""
    arrays = {name: whole(a) for name, a in arrays.items()}
    entries = (_T["tl_st_entry"] * max(len(arrays), 1))(
        *[(encoded(name), array_of(a)) for name, a in arrays.items()])
    meta = [(encoded(k), encoded(v)) for k, v in (metadata or {}).items()]
    err = _T["tl_err"]()
    if lib.tl_st_write(path_of(path), entries, len(arrays),
                       (_T["tl_st_meta"] * max(len(meta), 1))(*meta), len(meta), C.byref(err)):
        raise Error(err.status, message(err.message))
