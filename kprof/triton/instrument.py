"""Adds spans to an existing kernel. Rewrites a copy of its source; the file stays unchanged.

matmul = kp.instrument(matmul, at={"load": "tl.load", "dot": "tl.dot", "epilogue": (41, 44)})
matmul[grid](a, b, c, ...)                  # as before; under `kprof record` the spans are recorded
"""

from __future__ import annotations

import ast
import copy
import hashlib
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import EllipsisType
from typing import Any, Final

import triton
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import KernelInterface

from kprof.errors import RecorderError
from kprof.triton import calls
from kprof.triton.buffer import buffer, build_name
from kprof.triton.moved import Looked
from kprof.triton.regions import Regions

Place = str | int | tuple[int, int] | EllipsisType

_BUFFER: Final = "kprof_buffer"
_TRACK: Final = "kprof_track"
_JIT_OPTIONS: Final = (
    "version",
    "do_not_specialize",
    "do_not_specialize_on_alignment",
    "debug",
    "noinline",
    "launch_metadata",
)


class Instrumented:
    """A kernel with spans in it.

    Launches like the original, and gets its own buffer for every launch.
    """

    def __init__(self, kernel: Any, name: str, regions: Regions, recorder: Any = None) -> None:
        self.kernel = kernel
        self.regions = regions
        self._name = name
        self._recorder = recorder
        self._looked = Looked(name, regions.table)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """A function that launches on `grid`."""
        # If the grid is a function, the tuner's configuration decides it.
        known = None if callable(grid) else grid

        def launch(*args: Any, **kwargs: Any) -> Any:
            prof = buffer(self._name, known, self.regions, recorder=self._recorder)
            compiled = self.kernel[grid](*args, **kwargs, **{_BUFFER: prof})
            if prof is not None:
                self._looked.look_at(compiled)
            return compiled

        return launch


def instrument(
    kernel: Any,
    at: Mapping[str, Place],
    *,
    categories: Mapping[str, str] | None = None,
    recorder: Any = None,
) -> Instrumented:
    """A copy of a @triton.jit (or @gluon.jit, or autotuned) kernel with a span of region `name` at
    each place.

    A place is a call ("tl.load": every statement with that call), a line of the kernel's file (the
    statement that begins there, a loop as a whole), the first and the last line of consecutive
    statements, or `...`, the whole kernel. Places may be nested: one that holds others stays one
    span. `categories` are those of the regions, "compute" unless given; `recorder` is this
    process's unless given. Raises RecorderError for a kernel without source, and for a place that
    the kernel does not have.
    """
    function = _function_of(kernel)
    tree, first_line = _source_of(function)
    regions = Regions()
    names = {f"kprof_{call}": getattr(calls, call) for call in ("open_track", "start", "stop")}
    for idx, name in enumerate(at):
        names[f"kprof_region_{idx}"] = regions.define(
            name, category=(categories or {}).get(name, "compute")
        )
    at_most: int | None = 0
    for idx, name, place in _outer_first(at):
        spans = _Spans(place, idx, first_line)
        tree.body = spans.around_all(tree.body)
        if not spans.num_found:
            raise RecorderError(
                f"{function.__name__} has no statement at {place!r} for {name!r}; its lines are "
                f"{first_line + tree.lineno - 1} to {first_line + (tree.end_lineno or 1) - 1}"
            )
        regions.move(name, function.__code__.co_filename, spans.line)
        at_most = None if at_most is None or spans.is_in_loop else at_most + spans.num_found
    tree.args.args.append(ast.arg(_BUFFER))
    tree.args.defaults.append(ast.Constant(None))
    opened = f"{_TRACK} = kprof_open_track({_BUFFER}, at_most={at_most})"
    _insert_first(tree, opened)
    rebuilt = _rebuilt(kernel, _compiled(tree, function, names))
    return Instrumented(rebuilt, function.__name__, regions, recorder)


# Parameters of a kernel that `with_whole_span` has made: the numbers of a Buffer.
WORDS: Final = tuple(f"kprof_word_{idx}" for idx in range(4))


def with_words(kernel: Any, name: str) -> tuple[Any, Regions]:
    """A copy of a @triton.jit kernel that takes WORDS after all other arguments, and ignores them.

    The only one of the regions, `name`, is for spans of whole programs. Raises RecorderError for a
    kernel without source.
    """
    function = _function_of(kernel)
    tree, _ = _source_of(function)
    regions = Regions()
    regions.define(name, category="compute")
    tree.args.args += [ast.arg(word) for word in WORDS]
    return _rebuilt(kernel, _compiled(tree, function, {})), regions


def with_whole_span(kernel: Any, name: str) -> tuple[Any, Regions]:
    """A copy of a @triton.jit kernel with one span, of region `name`, around each program.

    It takes the four numbers of a Buffer (WORDS) after all other arguments, those of a launch that
    shares chunks. Raises RecorderError for a kernel without source.
    """
    function = _function_of(kernel)
    tree, _ = _source_of(function)
    regions = Regions()
    names = {
        "kprof_region": regions.define(name, category="compute"),
        "kprof_build": build_name(regions.table, 0),
        "kprof_begin": calls.begin_whole,
        "kprof_end": calls.end_whole,
    }
    buffer_words = f"({', '.join(WORDS)}, kprof_build)"
    tree.body = _with_ends(tree.body, f"kprof_end({buffer_words}, kprof_began, kprof_region)")
    tree.args.args += [ast.arg(word) for word in WORDS]
    _insert_first(tree, f"kprof_began = kprof_begin({buffer_words})")
    return _rebuilt(kernel, _compiled(tree, function, names)), regions


def _insert_first(tree: ast.FunctionDef, text: str) -> None:
    has_docstring = ast.get_docstring(tree) is not None
    tree.body.insert(int(has_docstring), _statement(text))


def _with_ends(body: list[ast.stmt], text: str) -> list[ast.stmt]:
    """A function's statements with one more before every way out."""
    around = ast.If(ast.Constant(value=True), body, [])
    _stop_before_returns(around, text)
    is_over = isinstance(body[-1], ast.Return)
    return body if is_over else [*body, _statement(text)]


def _outer_first(at: Mapping[str, Place]) -> list[tuple[int, str, Place]]:
    """The places with their numbers: those that hold others come before them, so that spans
    nest."""

    def order(place: Place) -> tuple[int, int]:
        if place is ...:
            return 0, 0
        if isinstance(place, tuple):
            return 1, place[0] - place[1]
        return (2, place) if isinstance(place, int) else (3, 0)

    places = [(idx, name, place) for idx, (name, place) in enumerate(at.items())]
    return sorted(places, key=lambda each: order(each[2]))


class _Spans:
    """Puts one region's spans around the statements at one place.

    `num_found` is how many it put, `is_in_loop` whether one of them is in a loop, `line` where the
    first is.
    """

    def __init__(self, place: Place, idx: int, first_line: int) -> None:
        self._place = place
        self._idx = idx
        self._first_line = first_line
        self.num_found = 0
        self.is_in_loop = False
        self.line = first_line

    def around_all(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The kernel's statements with spans added."""
        if self._place is not ...:
            return self.around(body)
        self.num_found = 1
        return [self._start(), *_with_ends(body, self._stop)]

    def around(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements with spans added, also in loops and branches."""
        result: list[ast.stmt] = []
        run: list[ast.stmt] = []
        for idx, statement in enumerate(body):
            # What another place has put between two statements of a range does not end the range.
            is_within = statement.lineno == 0 and bool(run) and self._goes_on(body[idx:])
            if is_within or self._is_wanted(statement):
                run.append(statement)
                if not isinstance(self._place, tuple):
                    result += self._wrapped(run)
                    run = []
                continue
            result += self._wrapped(run)
            run = []
            result.append(self._with_spans_inside(statement))
        return result + self._wrapped(run)

    def _with_spans_inside(self, statement: ast.stmt) -> ast.stmt:
        num_before = self.num_found
        for field in ("body", "orelse"):
            if inner := getattr(statement, field, None):
                setattr(statement, field, self.around(inner))
        if isinstance(statement, ast.For | ast.While) and self.num_found > num_before:
            self.is_in_loop = True
        return statement

    def _goes_on(self, rest: list[ast.stmt]) -> bool:
        """Whether the next statement of the kernel's own is wanted, too."""
        return next((self._is_wanted(each) for each in rest if each.lineno), False)

    def _is_wanted(self, statement: ast.stmt) -> bool:
        if statement.lineno == 0 or isinstance(statement, ast.Return):
            return False
        line = self._first_line + statement.lineno - 1
        if isinstance(self._place, int):
            return line == self._place
        if isinstance(self._place, tuple):
            last = self._first_line + (statement.end_lineno or statement.lineno) - 1
            return self._place[0] <= line and last <= self._place[1]
        # What it evaluates itself, without the body of a loop or branch.
        parts = [part for part in ast.iter_child_nodes(statement) if not isinstance(part, ast.stmt)]
        return any(
            isinstance(node, ast.Call) and ast.unparse(node.func) == self._place
            for part in parts
            for node in ast.walk(part)
        )

    def _wrapped(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        if not statements:
            return []
        if not self.num_found:
            self.line = self._first_line + statements[0].lineno - 1
        self.num_found += 1
        for statement in statements:
            _stop_before_returns(statement, self._stop)
        return [self._start(), *statements, _statement(self._stop)]

    def _start(self) -> ast.stmt:
        return _statement(f"kprof_begin_{self._idx} = kprof_start({_TRACK})")

    @property
    def _stop(self) -> str:
        return f"{_TRACK} = kprof_stop({_TRACK}, kprof_begin_{self._idx}, kprof_region_{self._idx})"


def _stop_before_returns(statement: ast.stmt, stop: str) -> None:
    """Ends the span before a return statement within it."""
    for field in ("body", "orelse"):
        inner: list[ast.stmt] = getattr(statement, field, [])
        for idx in reversed(range(len(inner))):
            _stop_before_returns(inner[idx], stop)
            if isinstance(inner[idx], ast.Return):
                inner.insert(idx, _statement(stop))


def _statement(text: str) -> ast.stmt:
    """One of our statements, on line 0, so that no place matches it."""
    statement = ast.parse(text).body[0]
    for node in ast.walk(statement):
        if hasattr(node, "lineno"):
            node.lineno = 0
    return statement


def _function_of(kernel: Any) -> Any:
    """The Python function inside @triton.autotune, @triton.heuristics and @triton.jit."""
    if inspect.isfunction(kernel):
        raise RecorderError(
            f"instrument() takes a kernel made by @triton.jit or @gluon.jit, and "
            f"{kernel.__name__} is a Python function; if it launches one, give that"
        )
    while not inspect.isfunction(kernel):
        name = _name_of_inner(kernel)
        if name is None:
            raise RecorderError("instrument() takes a kernel made by @triton.jit or @gluon.jit")
        kernel = getattr(kernel, name)
    return kernel


def _name_of_inner(kernel: Any) -> str | None:
    """The attribute in which a decorator of kernels keeps the kernel that it has got."""
    if hasattr(kernel, "fn"):
        return "fn"
    attributes = getattr(kernel, "__dict__", {})
    found = (name for name, value in attributes.items() if isinstance(value, KernelInterface))
    return next(found, None)


def _source_of(function: Any) -> tuple[ast.FunctionDef, int]:
    """The function's syntax tree, and the line in its file at which the tree begins."""
    try:
        lines, first_line = inspect.getsourcelines(function)
    except OSError:
        raise RecorderError(f"the source of {function.__name__} cannot be read") from None
    if inspect.getclosurevars(function).nonlocals:
        raise RecorderError(
            f"{function.__name__} uses variables of the function that it is defined in; "
            "instrument() takes kernels that are defined in a module"
        )
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    return tree, first_line


def _compiled(tree: ast.FunctionDef, function: Any, names: dict[str, Any]) -> Any:
    """Compiles the tree, and puts its source where Python caches the source of files."""
    text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    file_name = f"{inspect.getfile(function)} (instrumented by kprof, {digest})"
    # Without a modification time, Python does not look for the file.
    linecache.cache[file_name] = (len(text), None, text.splitlines(keepends=True), file_name)
    scope = {**function.__globals__, **names}
    exec(compile(text, file_name, "exec"), scope)
    compiled = scope[function.__name__]
    # This module's import from __future__ holds for that text as well, and has put a type given as
    # text into quotes.
    for name, annotation in compiled.__annotations__.items():
        compiled.__annotations__[name] = annotation.strip("'")
    return compiled


def _rebuilt(kernel: Any, function: Any) -> Any:
    """The kernel with its decorators around another function."""
    name = _name_of_inner(kernel)
    assert name is not None
    inner = getattr(kernel, name)
    if inspect.isfunction(inner):
        return _jit(kernel, function)
    rebuilt = _rebuilt(inner, function)
    if not isinstance(kernel, KernelInterface):
        # It does not launch: torch's wrap_triton() marks a kernel for its compiler.
        return rebuilt
    outer = copy.copy(kernel)
    # Decorators may keep the kernels further inside as well, or what they have compiled of them.
    within = {id(old): new for old, new in _layers(inner, rebuilt)}
    for attribute, value in vars(kernel).items():
        if id(value) in within:
            setattr(outer, attribute, within[id(value)])
        elif isinstance(value, dict) and "cache" in attribute:
            setattr(outer, attribute, dict(value) if isinstance(kernel, Autotuner) else {})
    if hasattr(outer, "arg_names"):
        outer.arg_names = rebuilt.arg_names
    return outer


def _layers(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    """A kernel and all that it holds, each with what takes its place."""
    while old is not None and new is not None:
        yield old, new
        name = None if inspect.isfunction(old) else _name_of_inner(old)
        old, new = (getattr(each, name) if name else None for each in (old, new))


def _jit(kernel: Any, function: Any) -> Any:
    kept = getattr(kernel, "kwargs", None) or {
        name: getattr(kernel, name) for name in _JIT_OPTIONS if hasattr(kernel, name)
    }
    if getattr(kernel, "is_gluon", lambda: False)():
        from triton.experimental import gluon

        jit: Any = gluon.jit
    else:
        jit = triton.jit
    rebuilt = jit(function, **kept)
    # The same list: hooks may be added later.
    rebuilt.pre_run_hooks = kernel.pre_run_hooks
    return rebuilt
