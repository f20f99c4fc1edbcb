"""Functions of Python that C calls: what is compiled, and what gradcheck differentiates."""
import contextlib
import ctypes as C

from .arrays import message
from .core import Error, Tape, Tensor, _handle, _method, _Object, _place, _struct
from .face import face, lib

_T = face.types


def _callback(ctype, tape, f, raised, room, kept=None):
    """f(t, *inputs) -> tensor or tensors, as a function of C's that puts them into out[room]. What
    it raises is kept for its caller: C cannot pass it on. kept: a list for what calls in f lend."""
    def call(t, inputs, n, out, *rest):
        on = tape if t == tape._p else Tape._borrow(t, tape.model, kept)
        try:
            made = f(on, *[Tensor(on, _handle(inputs[i])) for i in range(n)])
            made = list(made) if isinstance(made, (list, tuple)) else [made]
            if len(made) != room:
                raise ValueError("the function returned %d tensors, not %d" % (len(made), room))
            for y in made:
                if not isinstance(y, Tensor):
                    raise TypeError("the function returned %r, no Tensor" % (y,))
            for i, y in enumerate(made):
                out[i] = y.c
        except BaseException as e:
            raised.append(e)
    return ctype(call)


@contextlib.contextmanager
def _raising(raised):
    """What a callback raised comes before the error that C makes of its missing result."""
    del raised[:]
    try:
        yield
    except Error:
        if not raised:
            raise
    if raised:
        raise raised.pop()


def _checker(name):
    def check(f, *inputs, tape=None, **options):
        raised, inputs = [], list(inputs)
        for x in inputs:
            if not isinstance(x, Tensor):
                raise TypeError("%s: a Tensor is wanted as an input, not %r" % (name, x))
        if tape is None and not inputs:
            raise TypeError("%s: without inputs a tape is wanted: tape=t" % name)
        tape = tape or inputs[0].tape
        kept = _T["tl_callback"]()
        kept.call = _callback(dict(kept._fields_)["call"], tape, f, raised, 1)
        report = _T["tl_gradcheck_report"]()
        with _raising(raised):
            _method(face.functions["tl_%s_at" % name])(
                tape, C.cast(lib.tl_callback_run, C.c_void_p), inputs,
                C.cast(C.pointer(kept), C.c_void_p), report=report, **options)
        return report
    check.__name__ = check.__qualname__ = name
    return check


gradcheck, gradgradcheck = _checker("gradcheck"), _checker("gradgradcheck")
gradcheck.__doc__ = """Checks the gradients of f(t, *inputs) by its inputs, and by the parameters that it uses of
    the tape's model. f returns a tensor; the check may call it on a tape of its own. Returns C's
    report; any verdict but right is an Error with the report's text.
    """
gradgradcheck.__doc__ = """The same for second derivatives."""
Tape.gradcheck = lambda self, f, *inputs, **options: gradcheck(f, *inputs, tape=self, **options)
Tape.gradgradcheck = lambda self, f, *inputs, **options: gradgradcheck(f, *inputs, tape=self,
                                                                       **options)
_T["tl_gradcheck_report"].__str__ = lambda report: message(report.text)


class Compiled(_Object):
    """f(t, *inputs) as a graph for each set of shapes: Compiled(t, f, n_out=1); call it. Whatever f
    lends to C when it is traced (arrays, functions) is kept as long as this object lives, although
    C may have freed the graph by then: it does not say when."""

    def __init__(self, tape, f, n_out=1, **options):
        self.tape, self.n_out, self.raised, self.kept = tape, n_out, [], []
        self.f = _callback(_T["tl_program"], tape, f, self.raised, n_out, self.kept)
        options = _struct(_T["tl_graph_options"], options)
        p = lib.tl_compile_at(tape._at("compile"), self.f, n_out, None, options)
        if not p:
            tape._check()  # says what is the matter
        self._own(p, tape)

    def __call__(self, *inputs):
        for x in inputs:
            if not isinstance(x, Tensor):
                raise TypeError("a Tensor is wanted as an input, not %r" % (x,))
        out = (_T["tl_tensor"] * self.n_out)()
        with _raising(self.raised):
            lib.tl_run_at(*_place(), self._p, (_T["tl_tensor"] * max(len(inputs), 1))(
                *[x.c for x in inputs]), len(inputs), out)
            self._check()
            self.tape._check()
        made = [Tensor(self.tape, _handle(c)) for c in out]
        return made[0] if self.n_out == 1 else made


def _compile(self, f, n_out=1, **options):
    """f(t, *inputs) as a graph for each set of shapes; see Compiled."""
    return Compiled(self, f, n_out, **options)


Tape.compile = _compile
