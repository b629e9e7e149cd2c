"""Names from a capture as text that cannot control a terminal.

A name can hold anything: escape sequences that retitle or repaint the terminal, a bell, line ends
that forge a line of output, marks that reverse the direction of text. All of these become visible
escapes, such as \\x1b.
"""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """`text` with control characters as visible escapes, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in text
    )


def utf8(text: str) -> str:
    """`text` with escapes for what UTF-8 cannot hold: bytes of file names, halves of characters."""
    return text.encode("utf-8", "backslashreplace").decode()


def printable_json(text: str) -> str:
    """JSON with the same characters in JSON's own escapes: its value stays the same."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _json_escaped(c) for c in text)


def _json_escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
