"""Add to the site what is not a Markdown file in docs/: the pages beside README.md, and the tutorial."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

REPOSITORY = "https://github.com/dynabound/dynabound/blob/main/"
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
}


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs with the files of the site."""
    from mkdocs.structure.files import File

    root = Path(config.config_file_path).parent
    for source, page in PAGES.items():
        text = with_links_of_the_site((root / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    text, pictures = tutorial(root / "docs" / "tutorial.ipynb")
    files.append(File.generated(config, "tutorial.md", content=text))
    for name, content in pictures.items():
        files.append(File.generated(config, name, content=content))
    return files


def with_links_of_the_site(text: str) -> str:
    """Links from the repository's root, as links from the site's; badges are left out."""
    text = re.sub(r"^\[!\[[^]]*\]\(https?:.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\((?!https?:|#)([^)#]+)", lambda match: f"]({_target(match[1])}", text)


def _target(path: str) -> str:
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/").replace(".ipynb", ".md") if path.startswith("docs/") else REPOSITORY + path


def tutorial(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """The notebook with its stored outputs as Markdown, and its pictures by name."""
    from nbconvert import MarkdownExporter

    body, resources = MarkdownExporter().from_filename(str(notebook))
    return body, resources["outputs"]
