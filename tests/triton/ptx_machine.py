"""Runs the first thread of each program of a kernel in PTX, on the CPU: as much of PTX as the tests' kernels have."""

from __future__ import annotations

import ctypes
import itertools
import re
import time
from collections.abc import Callable, Sequence
from operator import add, and_, eq, ge, gt, le, lt, mod, mul, ne, or_, sub, xor

_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "add": add, "sub": sub, "mul": mul, "rem": mod, "and": and_, "or": or_, "xor": xor,
    "eq": eq, "ne": ne, "lt": lt, "le": le, "gt": gt, "ge": ge, "min": min, "max": max,
}  # fmt: skip
_BITS = {f"{kind}{bits}": bits for kind in "bus" for bits in (16, 32, 64)} | {"pred": 1}


def _typed(value: int, kind: str) -> int:
    """The number that the bits are as `kind`: u32, s64, ..."""
    bits = _BITS[kind]
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def _statements(ptx: str) -> tuple[list[str], dict[str, int]]:
    text = re.sub(r"//[^\n]*", "", ptx)
    body = text[text.index("{", text.index(".entry")) :]
    found: list[str] = []
    labels: dict[str, int] = {}
    for line in re.sub(r"(\$\w+:)", r"\n\1;\n", body).replace(";", ";\n").splitlines():
        statement = re.sub(r"^[{}\s]+(?=[@.$\w])|[;\s]+$", "", line.strip())
        if statement.startswith("$") and statement.endswith(":"):
            labels[statement[:-1]] = len(found)
        elif re.match(r"@|[a-z]", statement):
            found.append(statement)
    return found, labels


class Thread:
    """One thread, at its first statement; `parameters` are 64 bits each."""

    def __init__(self, ptx: str, parameters: Sequence[int], special: dict[str, int]) -> None:
        self._statements, self._labels = _statements(ptx)
        self._parameters = parameters
        self._values: dict[str, int] = dict(special)
        self._shared: dict[int, int] = {}

    def run(self) -> None:
        place = 0
        for _ in range(100_000):
            guard, text = re.match(
                r"(?:@(!?%?\w+)\s+)?(.*)", self._statements[place], re.DOTALL
            ).groups()
            place += 1
            is_on = guard is None or bool(self._value(guard.lstrip("!"))) != guard.startswith("!")
            operation, _, rest = text.partition(" " if " " in text.partition("\t")[0] else "\t")
            operands = re.findall(r"\[[^]]*\]|\{[^}]*\}|[^,\s][^,]*", rest.strip())
            if not is_on:
                continue
            if operation == "ret":
                return
            if operation.startswith("bra"):
                place = self._labels[operands[0].strip()]
            else:
                self._do(operation.split("."), [each.strip() for each in operands])
        raise AssertionError("it does not end")

    def _value(self, name: str) -> int:
        if name == "%globaltimer":
            return time.monotonic_ns()
        if name.startswith("kprof_smem") or name == "global_smem":
            return 1 << 20
        return int(name, 0) if re.match(r"-?\d", name) else self._values[name]

    def _address(self, operand: str) -> int:
        parts = operand.strip("[] ").split("+")
        return sum(self._value(part.strip()) for part in parts)

    def _do(self, operation: list[str], operands: list[str]) -> None:
        name, kind = operation[0], operation[-1]
        if name in ("bar", "barrier", "fence", "membar"):
            return
        if name in ("ld", "st", "atom", "red"):
            self._access(operation, operands)
        elif name == "mov" and "{" in operands[0]:
            whole = self._value(operands[1])
            for idx, part in enumerate(self._parts(operands[0])):
                self._values[part] = whole >> 32 * idx & 0xFFFF_FFFF
        elif name == "mov" and "{" in operands[1]:
            low, high = map(self._value, self._parts(operands[1]))
            self._values[operands[0]] = low & 0xFFFF_FFFF | high << 32
        else:
            result = self._computed(operation, [self._value(each) for each in operands[1:5]])
            self._values[operands[0].partition("|")[0]] = result & (1 << 64) - 1
            if name == "shfl":
                return
            width = (
                64
                if "wide" in operation
                else _BITS.get(operation[1] if name == "cvt" else kind, 64)
            )
            self._values[operands[0]] = result & (1 << width) - 1

    def _computed(self, operation: list[str], given: list[int]) -> int:
        name, kind = operation[0], operation[-1]
        if name in ("mov", "shfl"):
            return given[0]
        if name == "cvt":
            return _typed(given[0], kind)
        if name == "selp":
            return given[0] if given[2] else given[1]
        if name == "bfe":
            return given[0] >> given[1] & (1 << given[2]) - 1
        if name in ("shl", "shr"):
            return (
                _typed(given[0], kind) << given[1]
                if name == "shl"
                else _typed(given[0], kind) >> given[1]
            )
        numbers = [_typed(each, kind) for each in given]
        if name == "mad":
            # The third is as wide as the result.
            third = _typed(given[2], "s64" if "wide" in operation else kind)
            return numbers[0] * numbers[1] + third
        result = _INTEGERS[operation[1] if name == "setp" else name](*numbers)
        return result >> 32 if name == "mul" and "hi" in operation else int(result)

    def _access(self, operation: list[str], operands: list[str]) -> None:
        name, space = operation[:2]
        size = _BITS[operation[-1]] // 8
        if space == "param":
            found = re.search(r"_param_(\d+)", operands[1])
            assert found is not None
            self._values[operands[0]] = self._parameters[int(found[1])] & (1 << 8 * size) - 1
        elif name == "red":
            address = self._address(operands[0])
            before = self._load(space, address, size)
            self._store(space, address, size, before + self._value(operands[1]))
        elif name == "st":
            parts = self._parts(operands[1])
            for idx, part in enumerate(parts):
                self._store(space, self._address(operands[0]) + idx * size, size, self._value(part))
        else:
            address = self._address(operands[1])
            (into,) = self._parts(operands[0])
            before = self._load(space, address, size)
            if "cas" in operation:
                if before == self._value(operands[2]):
                    self._store(space, address, size, self._value(operands[3]))
            elif name == "atom":
                self._store(space, address, size, before + self._value(operands[2]))
            self._values[into] = before

    @staticmethod
    def _parts(operand: str) -> list[str]:
        return [part.strip() for part in operand.strip("{} ").split(",")]

    def _load(self, space: str, address: int, size: int) -> int:
        if space.startswith("shared"):
            return self._shared[address]
        return int.from_bytes(ctypes.string_at(address, size), "little")

    def _store(self, space: str, address: int, size: int, value: int) -> None:
        value &= (1 << 8 * size) - 1
        if space.startswith("shared"):
            self._shared[address] = value
        else:
            ctypes.memmove(address, value.to_bytes(size, "little"), size)


def run(ptx: str, grid: tuple[int, int, int], parameters: Sequence[int], first: int = 0) -> None:
    """Every program of the grid, one after the other; `first` is the first one's place in it."""
    sizes = {f"%nctaid.{axis}": size for axis, size in zip("xyz", grid, strict=True)}
    for z, y, x in itertools.product(*(range(size) for size in reversed(grid))):
        place = {
            "%ctaid.x": first + x,
            "%ctaid.y": y,
            "%ctaid.z": z,
            "%tid.x": 0,
            "%ntid.x": 128,
            "%smid": 3,
            "%clock64": 1,
        }
        Thread(ptx, parameters, {**sizes, **place}).run()
