"""What it costs that hangs are found.

    python -m benchmarks.hang_cost [--looks 100] [--json FILE]
    python -m benchmarks.hang_cost --device cuda:0 [--repeats 60] [--json FILE]

Without a device: CPU time of the process that watches 8 ranks of which 1056 tracks each wait. With
one: what a kernel pays for calls of still_waiting and for announced regions, in short events and in
waits that last long; all schemes are interleaved within every repeat.
"""

from __future__ import annotations

from benchmarks import harness
from benchmarks.hang_cost.watching import measure_watching


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--device", help="a GPU, as torch names it")
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--looks", type=int, default=100)
    arguments = parser.parse_args()
    result: dict[str, object] = harness.context("python -m benchmarks.hang_cost")
    if arguments.device:
        from benchmarks.hang_cost.kernels import measure_kernels

        result |= measure_kernels(arguments.device, arguments.repeats)
    else:
        result |= measure_watching(arguments.looks)
    harness.show_and_write(result, arguments.output)


if __name__ == "__main__":
    main()
