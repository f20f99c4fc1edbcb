"""The C of libtally.so for ctypes: found, read, checked.

Nothing here is written by hand for one struct or function. The library carries its declarations as
text (tl_face, tally_bind.h); this module reads them, makes ctypes of them, and refuses a library
in which a type has another size than ctypes gives it.
"""
import ctypes as C
import ctypes.util
import os
import re
import subprocess
import sys

PLAIN = {"void": None, "_Bool": C.c_bool, "char": C.c_char, "signed char": C.c_byte,
         "unsigned char": C.c_ubyte, "short": C.c_short, "unsigned short": C.c_ushort,
         "int": C.c_int, "unsigned": C.c_uint, "unsigned int": C.c_uint, "long": C.c_long,
         "unsigned long": C.c_ulong, "long long": C.c_longlong, "float": C.c_float,
         "unsigned long long": C.c_ulonglong, "double": C.c_double, "size_t": C.c_size_t,
         "ptrdiff_t": C.c_ssize_t, "uintptr_t": C.c_size_t}
PLAIN.update({"%sint%d_t" % (u, n): getattr(C, "c_%sint%d" % (u, n))
              for u in ("", "u") for n in (8, 16, 32, 64)})


class Function:
    """A C function: its name, ctypes result and C type, parameters as (name, ctype, C type)."""

    def __init__(self, name, result, kind, params, prototype):
        self.name, self.result, self.kind = name, result, kind
        self.params, self.prototype = params, prototype


class Opaque:
    """A type of which only pointers are known."""


class Face:
    """types: ctypes by C name; constants: enumerators; functions: Function by name."""

    def __init__(self, text):
        self.types, self.constants, self.functions = dict(PLAIN), {}, {}
        text = re.sub(r"__attribute__\s*\(\(.*?\)\)\)*(?=;)", "", text, flags=re.S)
        now, depth, body = [], 0, False
        for token in re.findall(r"\w+|\S", text):
            depth += (token in "{(") - (token in "})")
            body |= token == "{" and now[-1:] == [")"]  # of a function: skipped
            if depth == 0 and (token == ";" or body and token == "}"):
                if now and not body and now[0] not in ("extern", "static"):
                    self.declare(now)
                now, body = [], False
            else:
                now.append(token)

    def declare(self, tokens):
        typedef = tokens[0] == "typedef"
        base, rest = self.base(tokens[typedef:])
        if not rest:
            return
        name, ctype, kind, params = self.declarator(base, rest)
        if typedef:
            if is_struct(ctype):
                ctype.__name__ = name
            self.types[name] = ctype if params is None else callback(ctype, params)
        elif params is not None:
            text = re.sub(r" (?=[,)\]\[(])|(?<=[(\[*]) ", "", " ".join(tokens))
            self.functions[name] = Function(name, ctype, kind, params, text)

    def base(self, tokens):
        """The type that a declaration begins with, as (ctype, C name), and the tokens after it."""
        tokens = [t for t in tokens if t not in ("const", "volatile", "inline")]
        if tokens[0] not in ("struct", "enum", "union"):
            n = 1
            while " ".join(tokens[:n + 1]) in PLAIN:
                n += 1
            name = " ".join(tokens[:n])
            return (self.types.get(name, Opaque), name), tokens[n:]
        kind, i = tokens[0], 1 + (tokens[1] != "{")
        tag = "".join(tokens[1:i])
        if tokens[i:i + 1] != ["{"]:
            return (self.types.get(tag, Opaque), tag), tokens[i:]
        end = closing(tokens, i)
        body = tokens[i + 1:end]
        ctype = self.enum(body) if kind == "enum" else type(tag or "struct", (
            C.Structure if kind == "struct" else C.Union,), {"_fields_": list(self.fields(body))})
        if tag:
            self.types[tag] = ctype
        return (ctype, tag), tokens[end + 1:]

    def declarator(self, base, tokens):
        """-> name, ctype, its C type, and the parameters if it is a function's"""
        (ctype, kind), name, i = base, "", 0
        while tokens[i:i + 1] == ["*"]:
            ctype, kind, i = pointer(ctype), kind + " *", i + 1
        if tokens[i:i + 1] == ["("]:  # (*name)(...), (*name)[n]
            end = closing(tokens, i)
            name = "".join(t for t in tokens[i + 1:end] if t != "*")
            if tokens[end + 1:end + 2] == ["("]:
                return name, callback(ctype, self.params(tokens[end + 2:-1])), kind + " ()", None
            return name, C.c_void_p, kind, None
        if i < len(tokens) and tokens[i] != "[":
            name, i = tokens[i], i + 1
        if tokens[i:i + 1] == ["("]:
            return name, ctype, kind, self.params(tokens[i + 1:-1])
        sizes = []
        while tokens[i:i + 1] == ["["]:
            end = closing(tokens, i)
            sizes.append(self.value(tokens[i + 1:end]))
            i = end + 1
        for n in reversed(sizes):
            ctype, kind = ctype * n, "%s[%d]" % (kind, n)
        return name, ctype, kind, None

    def fields(self, body):
        for tokens in split(body, ";"):
            base, rest = self.base(tokens)
            for one in split(rest, ","):
                name, ctype, _, params = self.declarator(base, one)
                if ctype is Opaque:
                    raise ImportError("a public struct has a field of unknown type: "
                                      + " ".join(tokens))
                yield name, ctype

    def params(self, tokens):
        listed = []
        for one in split(tokens, ","):
            if one not in (["void"], [".", ".", "."]):
                name, ctype, kind, params = self.declarator(*self.base(one))
                array = isinstance(ctype, type) and issubclass(ctype, C.Array)
                listed.append((name, C.c_void_p if array or params is not None else ctype, kind))
        return listed

    def enum(self, body):
        value = -1
        for tokens in split(body, ","):
            value = self.value(tokens[2:]) if len(tokens) > 1 else value + 1
            self.constants[tokens[0]] = value
        return C.c_int

    def value(self, tokens):
        text = " ".join(re.sub(r"(?<=\d)[uUlL]+$", "", t) for t in tokens).replace("< <", "<<")
        return eval(text or "0", {"__builtins__": {}}, self.constants)


def is_struct(ctype):
    return isinstance(ctype, type) and issubclass(ctype, (C.Structure, C.Union))


def pointer(ctype):
    if ctype is C.c_char:
        return C.c_char_p
    if isinstance(ctype, type) and issubclass(ctype, C._CFuncPtr):
        return ctype
    return C.POINTER(ctype) if is_struct(ctype) else C.c_void_p


def callback(result, params):
    """ctypes has no callbacks that return structs: those are mere pointers here."""
    return C.c_void_p if is_struct(result) or result is Opaque else C.CFUNCTYPE(
        result, *[p[1] for p in params])


def split(tokens, at):
    now, depth = [], 0
    for token in tokens + [at]:
        depth += (token in "{([") - (token in "})]")
        if depth == 0 and token == at:
            if now:
                yield now
            now = []
        else:
            now.append(token)


def closing(tokens, i):
    depth = 0
    for j in range(i, len(tokens)):
        depth += (tokens[j] in "{([") - (tokens[j] in "})]")
        if depth == 0:
            return j
    raise ImportError("tally: an unbalanced declaration: " + " ".join(tokens))


def candidates():
    """TALLY_LIB in the environment; this file's tree's build; pkg-config; the system."""
    if os.environ.get("TALLY_LIB"):
        yield os.environ["TALLY_LIB"]
        return
    name = "libtally.dylib" if sys.platform == "darwin" else "libtally.so"
    tree = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
    if os.path.exists(os.path.join(tree, "tally.h")):
        yield os.path.join(tree, "build", name)
    try:
        where = subprocess.run(["pkg-config", "--variable=libdir", "tally"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if where.stdout.strip():
            yield os.path.join(where.stdout.strip(), name)
    except OSError:
        pass
    yield "/usr/local/lib/" + name
    yield ctypes.util.find_library("tally") or name


def load():
    tried = []
    for path in candidates():
        try:
            lib = C.CDLL(path)
            break
        except OSError as e:
            tried.append(str(e))
    else:
        raise ImportError("libtally.so is not found; set TALLY_LIB to it: " + "; ".join(tried))
    if not hasattr(lib, "tl_face"):
        raise ImportError("%s is a Tally that does not tell its declarations (tl_face)" % path)
    lib.tl_face.restype, lib.tl_face_size.restype = C.c_char_p, C.c_size_t
    return lib, path


def check(face, size_of):
    """Refuses types that are other in the library than here."""
    for name, ctype in face.types.items():
        size = size_of(name.encode())
        if size and is_struct(ctype) and C.sizeof(ctype) != size:
            raise ImportError("%s has %d bytes in libtally.so, and %d here"
                              % (name, size, C.sizeof(ctype)))
    return face


lib, path = load()
face = check(Face(lib.tl_face().decode()), lib.tl_face_size)
for _name, _f in face.functions.items():
    _types = [p[1] for p in _f.params]
    if Opaque not in _types and hasattr(lib, _name):  # a va_list is beyond ctypes
        _c = getattr(lib, _name)
        _c.restype, _c.argtypes = _f.result, _types
