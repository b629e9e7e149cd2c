"""The installed version of Triton, and whether kprof was tested with it."""

from __future__ import annotations

import os
from importlib import metadata
from typing import Final

from kprof.errors import TargetError

# The tests check the compiled code and the interpreter of these versions.
TESTED: Final = ("3.6", "3.7", "3.8", "3.9")
ANY_VERSION_VARIABLE: Final = "KPROF_TRITON_ANY_VERSION"


def check_version(version: str) -> None:
    """Raises TargetError for an untested Triton, unless KPROF_TRITON_ANY_VERSION=1."""
    if ".".join(version.split(".")[:2]) in TESTED or os.environ.get(ANY_VERSION_VARIABLE) == "1":
        return
    raise TargetError(
        f"kprof.triton is tested with Triton {', '.join(TESTED)}, and this is Triton {version}; "
        f"install one of those, or set {ANY_VERSION_VARIABLE}=1 to try this one"
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
