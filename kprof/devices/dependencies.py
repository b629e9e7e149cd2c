"""What a build depends on: the files that the compiler has read, as it lists them itself (-MMD).

The list lies beside the library. The library serves again as long as these files hold what they
held, and no file has come to a place where the compiler would find it before one of them.
"""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kprof.devices.resources import Resources
from kprof.errors import BuildError

_SUFFIX: Final = ".needs.json"
# Words of a makefile, in which a backslash keeps a space or a # within a word.
_WORD: Final = re.compile(r"(?:\\.|[^\s\\])+")


class Needs(msgspec.Struct, frozen=True):
    """The files that a compiler has read, and paths at which another one would come first; beside
    them, what the compiler says that the kernels take, by their symbols."""

    read: tuple[str, ...]
    absent: tuple[str, ...] = ()
    kernels: dict[str, Resources] = {}

    def digest(self) -> str:
        """Of the contents of all files; empty where the compiler would read others today."""
        if any(Path(path).exists() for path in self.absent):
            return ""
        digest = hashlib.sha256()
        try:
            for name in self.read:
                content = Path(name).read_bytes()
                digest.update(f"{name} {len(content)} ".encode(errors="surrogateescape") + content)
        except OSError:
            return ""
        return digest.hexdigest()[:20]


@dataclass(frozen=True)
class KeptBuilds:
    """All builds of one source with one compiler and one set of flags: files NAME-*.SUFFIX."""

    folder: Path
    name: str
    suffix: str

    def current(self) -> Path | None:
        """The build of the files as they are now."""
        for path in sorted(self.folder.glob(f"{glob.escape(self.name)}-*{_SUFFIX}")):
            try:
                digest = msgspec.json.decode(path.read_bytes(), type=Needs).digest()
            except (OSError, msgspec.DecodeError):
                continue
            built = self._built(digest)
            if digest and path == self._needs(digest) and built.exists():
                return built
        return None

    def keep(self, built: Path, needs: Needs) -> Path:
        """Keep a build; returns where. Raises BuildError for files that nobody may read twice."""
        digest = needs.digest()
        if not digest:
            raise BuildError(f"files of {self.name} went away while it was compiled; try again")
        kept = self._built(digest)
        built.replace(kept)
        list_of_files = built.with_suffix(_SUFFIX)
        list_of_files.write_bytes(msgspec.json.encode(needs))
        list_of_files.replace(self._needs(digest))
        return kept

    def _built(self, digest: str) -> Path:
        return self.folder / f"{self.name}-{digest}.{self.suffix}"

    def _needs(self, digest: str) -> Path:
        return self.folder / f"{self.name}-{digest}{_SUFFIX}"


def kernels_of(built: Path) -> dict[str, Resources]:
    """What the compiler of a kept build said of its kernels, by their symbols."""
    try:
        return msgspec.json.decode(built.with_suffix(_SUFFIX).read_bytes(), type=Needs).kernels
    except (OSError, msgspec.DecodeError):
        return {}


def needs_of(
    rules: str, search_dirs: Sequence[Path], kernels: Mapping[str, Resources] | None = None
) -> Needs:
    """What the makefile rules say that a compiler has written with -MMD.

    `search_dirs` are the folders of -I in their order.
    """
    words = _WORD.findall(rules.replace("\\\n", " "))
    # The rest of the first word is what was built; nvcc writes a space in front of the colon.
    begin = next((place for place, word in enumerate(words) if word.endswith(":")), -1) + 1
    names = (re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words[begin:])
    read = tuple(dict.fromkeys(str(Path(name).absolute()) for name in names))
    folders = [str(folder.absolute()) for folder in search_dirs]
    return Needs(read, tuple(dict.fromkeys(_absent(read, folders))), dict(kernels or {}))


def _absent(read: Sequence[str], folders: Sequence[str]) -> Iterator[str]:
    """Where nothing is now, and a file would be included in place of one that was read."""
    inside = {path: folder for path in read for folder in folders if path.startswith(f"{folder}/")}
    places = dict.fromkeys([*folders, *(str(Path(path).parent) for path in inside)])
    for path, folder in inside.items():
        for place in places:
            candidate = place + path[len(folder) :]
            if not Path(candidate).exists():
                yield candidate
