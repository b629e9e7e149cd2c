"""The installed version of Triton, and whether kprof was tested with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import metadata
from typing import Final

from kprof.errors import TargetError

# The tests check the compiled code and the interpreter of these versions.
TESTED: Final = ("3.6", "3.7", "3.8", "3.9")
ANY_VERSION_VARIABLE: Final = "KPROF_TRITON_ANY_VERSION"


def check_version(version: str) -> None:
    """Raises TargetError for an untested Triton, unless KPROF_TRITON_ANY_VERSION=1."""
    check_tested("kprof.triton", "Triton", version, TESTED, ANY_VERSION_VARIABLE)


def check_tested(
    what: str, package: str, version: str, tested: Sequence[str], any_version: str
) -> None:
    """Raises TargetError for an untested version, unless the variable `any_version` is 1."""
    if ".".join(version.split(".")[:2]) in tested or os.environ.get(any_version) == "1":
        return
    raise TargetError(
        f"{what} is tested with {package} {', '.join(tested)}, and this is {package} {version}; "
        f"install one of those, or set {any_version}=1 to try this one"
    )


def installed_version() -> str:
    """The version of the Triton that `import triton` finds.

    Raises TargetError when there is none.
    """
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        pass
    try:
        import triton
    except ImportError:
        raise TargetError("kprof.triton needs Triton: pip install torch triton") from None
    return str(triton.__version__)
