"""What mkdocs does not do by itself: pages and pictures that are kept elsewhere, links between
them, and the notebook.

Pages are written for people who read them in the repository. In the site, links to files that are
no part of it become plain text.
"""

from __future__ import annotations

import ast
import contextlib
import html
import io
import json
import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
# Kernels are called like links: kernel[grid](x).
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", flags=re.DOTALL | re.MULTILINE)
# Pages from elsewhere, by their places in the site.
STORIES = {
    **{
        f"stories/{readme.parent.name}.md": readme
        for readme in sorted((ROOT / "instrumented_kernels").glob("*/README.md"))
    },
    "stories/recordings.md": ROOT / "traces" / "README.md",
}
PICTURES = {
    f"pictures/{path.name}": path for path in sorted((ROOT / "traces" / "pictures").iterdir())
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is kept elsewhere."""
    from mkdocs.structure.files import File

    for place, path in (STORIES | PICTURES).items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    for place, content in notebook_pages().items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links of the repository lead to their places in the site."""
    place = page.file.src_uri
    if place == "notebook.md":
        return markdown
    source = STORIES.get(place, ROOT / "docs" / place)
    pieces = _CODE.split(markdown)
    pieces[::2] = [
        _LINK.sub(lambda link: _moved(link, source, place), text) for text in pieces[::2]
    ]
    return "".join(pieces)


def _moved(link: re.Match[str], source: Path, place: str) -> str:
    bang, text, target = link.groups()
    if re.match(r"\w+:|#", target):
        return link.group()
    path, _, anchor = target.partition("#")
    file = Path(os.path.normpath(source.parent / path))
    there = _place_of(file)
    if there is None:
        assert file.exists(), f"{source}: there is no {target}"
        return text
    moved = posixpath.relpath(there, posixpath.dirname(place) or ".")
    return f"{bang}[{text}]({moved}{'#' + anchor if anchor else ''})"


def _place_of(file: Path) -> str | None:
    for place, path in (STORIES | PICTURES).items():
        if path == file:
            return place
    if file == NOTEBOOK:
        return "notebook.md"
    docs = ROOT / "docs"
    return (
        file.relative_to(docs).as_posix() if file.is_relative_to(docs) and file.exists() else None
    )


def notebook_pages() -> dict[str, str]:
    """The notebook's texts and code with what the code answers, run now.

    Figures are pages of their own.
    """
    from plotly.offline import get_plotlyjs

    parts, pages = [], {"figures/plotly.js": get_plotlyjs()}
    for kind, source, value, printed in run_notebook():
        parts.append(source if kind == "markdown" else f"```python\n{source}\n```")
        if printed:
            parts.append(f"<pre>{html.escape(printed)}</pre>")
        if hasattr(value, "to_plotly_json"):
            place = f"figures/{len(pages)}.html"
            pages[place] = value.to_html(include_plotlyjs="plotly.js")
            height = (value.layout.height or 450) + 20
            parts.append(
                f'<iframe src="{place}" title="figure" width="100%" height="{height}"></iframe>'
            )
        elif value is not None:
            parts.append(_shown(value))
    return pages | {"notebook.md": "\n\n".join(parts)}


def run_notebook() -> list[tuple[str, str, Any, str]]:
    """Every cell in order: kind, source, the value of its last line, what it prints.

    Raises what a cell raises.
    """
    names: dict[str, Any] = {}
    cells = []
    # Paths in the notebook are those of a checkout.
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        for cell in json.loads(NOTEBOOK.read_text())["cells"]:
            source = "".join(cell["source"])
            answer = _run(source, names) if cell["cell_type"] == "code" else (None, "")
            cells.append((cell["cell_type"], source, *answer))
    finally:
        os.chdir(before)
    return cells


def _run(source: str, names: dict[str, Any]) -> tuple[Any, str]:
    """Run a cell: the value of its last line, and what it prints."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "notebook", "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
    return value, printed.getvalue()


def _shown(value: Any) -> str:
    if hasattr(value, "to_html"):
        # The theme styles tables that have no class of their own.
        return str(value.to_html(border=0)).replace(' class="dataframe"', "")
    if hasattr(value, "_repr_html_"):
        return str(value._repr_html_())
    return f"<pre>{html.escape(repr(value))}</pre>"
