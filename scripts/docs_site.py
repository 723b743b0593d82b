"""A hook of mkdocs: makes a site of docs/ and of whatever its pages link to in the rest of the repository.

A Markdown file outside docs/ becomes a page, any other file a page with its highlighted source, a folder a list of its files: all below
repository/. The links of every page are rewritten to them. The navigation is that of docs/index.md, so that it is written once.
Every public name of the Python packages gets its place under reference/.
"""

from __future__ import annotations

import ast
import html
import os
import posixpath
import re
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PICTURES = {".png", ".svg"}
# Folders whose lists link to their files; those of other folders only name them, or the site would have the whole repository.
LISTED = ("proto/", "examples/", "deploy/")
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
LINK = re.compile(r"(?P<before>\]\(|(?:src|href)=\")(?P<target>[^)\s#\"]+)(?P<rest>(?:#[^)\s\"]*)?[)\"])")
CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
LANGUAGE = {".py": "python", ".sh": "bash", ".yml": "yaml", ".yaml": "yaml", ".h": "cpp", ".cc": "cpp", ".cu": "cpp", ".proto": "protobuf",
            ".toml": "toml", ".json": "json", ".service": "ini", ".ts": "typescript", ".txt": "text", ".tpl": "text"}  # fmt: skip
PACKAGES = {"statagent": ROOT / "agent/python/statagent", "statcollect": ROOT / "client/python/statcollect"}
HEADERS = [
    ("C interface", "agent/include/statagent/statagent.h"),
    ("C++ interface", "agent/include/statagent/agent.h"),
    ("C++: options", "agent/include/statagent/options.h"),
    ("C++: tensors", "agent/include/statagent/tensor_view.h"),
    ("C++: types", "common/types.h"),
]


def slug(heading: str, separator: str) -> str:
    """A heading's anchor as GitHub makes it, so that links work in both places."""
    return re.sub(r"[^\w\- ]", "", html.unescape(heading).strip().lower()).replace(" ", separator)


@lru_cache(maxsize=1)
def tracked() -> frozenset[str]:
    """Files that git knows or would take; what was built or installed is not part of the site."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True
    )
    return frozenset(line for line in listed.stdout.splitlines() if (ROOT / line).is_file())


def in_site(path: str) -> str:
    """Where a path of the repository is in the site's sources."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    name = path if path.endswith(".md") else f"{path}/README.md" if is_folder(path) else f"{path}.md"
    return f"repository/{name}"


def of_repository(page: str) -> str | None:
    """The path in the repository of a page of the site; None for one that is made here."""
    if page.startswith("reference/"):
        return None
    path = page.removeprefix("repository/")
    if path == page:
        return f"docs/{page}"
    if path in tracked():
        return path
    folder = path.removesuffix("/README.md")
    return folder if is_folder(folder) else path.removesuffix(".md")


def is_folder(path: str) -> bool:
    return any(name.startswith(f"{path}/") for name in tracked())


def resolve(page: str, target: str) -> str | None:
    """The path in the repository to which a link of a file leads; None if it leads out of it, or nowhere."""
    if re.match(r"[a-z]+:|/|#", target):
        return None
    folder = page if is_folder(page) else posixpath.dirname(page)
    path = posixpath.normpath(posixpath.join(folder, target))
    if path in tracked():
        return path
    readme = f"{path}/README.md"
    return readme if readme in tracked() else path if is_folder(path) else None


def entry(folder: str, name: str) -> str:
    """A line of a folder's list: a link if the entry is a file that can be shown."""
    file = ROOT / folder / name
    if file.is_dir():
        return f"`{name}/`"
    shown = f"{folder}/".startswith(LISTED) and file.suffix not in PICTURES
    return f"[{name}]({name})" if shown else f"`{name}`"


def content(path: str) -> str:
    """The Markdown of a file or folder outside docs/."""
    if is_folder(path):
        below = sorted({name[len(path) + 1 :].split("/")[0] for name in tracked() if name.startswith(f"{path}/")})
        return f"{NOT_SEARCHED}# {path}\n\n" + "\n".join(f"- {entry(path, name)}" for name in below) + "\n"
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", text)), 3)
    language = "docker" if Path(path).name.startswith("Containerfile") else LANGUAGE.get(Path(path).suffix, "text")
    return f"{NOT_SEARCHED}# {path}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"


def links(path: str, text: str) -> list[str]:
    """Sorted, so that the site has the same bytes each time."""
    found = {match["target"] for part in CODE.split(text)[::2] for match in LINK.finditer(part)}
    return sorted({resolved for target in found if (resolved := resolve(path, target))})


def public_names(tree: ast.Module, package: str) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise PluginError(f"list the names of {package}: its __init__.py has no __all__; expected one")


def reference(package: str) -> str:
    """The page of a Python package: what its docstring says, its examples as code, then every public name."""
    tree = ast.parse((PACKAGES[package] / "__init__.py").read_text(encoding="utf-8"))
    text = re.sub(
        r"((?:^(?:>>>|\.\.\.).*\n)+(?:^(?!>>>|$).+\n)*)", r"```pycon\n\1```\n", f"{ast.get_docstring(tree)}\n", flags=re.MULTILINE
    )
    listed = "\n\n".join(f"::: {package}.{name}" for name in public_names(tree, package))
    return f"# {package}\n\n{text}\n{listed}\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    found = re.search(
        r"^project\(statcollect VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    if not found:
        raise PluginError("name the site's version: CMakeLists.txt has none; expected project(statcollect VERSION X.Y.Z")
    config.site_name = f"statcollect {found[1]}"
    config.nav = navigation()
    return config


def navigation() -> list[Any]:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    sections: list[Any] = [{"Documentation": "index.md"}]
    seen: set[str] = set()
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        pages: list[Any] = []
        for target in re.findall(r"\]\(([^)#\s]+)\)", text):
            path = resolve("docs/index.md", target)
            if path is None or path in seen:
                continue
            seen.add(path)
            pages.append(decisions() if path == "docs/decisions/README.md" else in_site(path))
        if title.strip() == "Reference":
            pages += [{f"Python: {name}": f"reference/{name}.md"} for name in PACKAGES]
            pages += [{name: in_site(path)} for name, path in HEADERS]
        sections.append({title.strip(): pages})
    return sections


def llms_text() -> str:
    """docs/index.md for programs that read (llmstxt.org): its lists, with the links of the site."""

    def link(match: re.Match[str]) -> str:
        path = resolve("docs/index.md", match["target"])
        page = in_site(path) if path else match["target"]
        built = (
            re.sub(r"(^|/)README\.html$", r"\1index.html", page.removesuffix(".md") + ".html") if page.endswith(".md") else page
        )
        return f"{match['before']}{built}{match['rest']}"

    lists = (ROOT / "docs/index.md").read_text(encoding="utf-8").partition("\n## ")[2]
    about = "Finds the first place where two training runs part ways: the step, the rank, the layer and the pass, and the cause."
    return f"# statcollect\n\n> {about}\n\n## {LINK.sub(link, lists)}"


def decisions() -> dict[str, list[str]]:
    folder = ROOT / "docs/decisions"
    return {"Decisions": ["decisions/README.md", *(f"decisions/{page.name}" for page in sorted(folder.glob("[0-9]*.md")))]}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()] + [path for _, path in HEADERS]
    done: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        if path.startswith("docs/"):
            if path.endswith(".md"):
                waiting += links(path, (ROOT / path).read_text(encoding="utf-8"))
            continue
        if Path(path).suffix in PICTURES:
            raise PluginError(f"show {path}: expected pictures of pages in docs/pictures; move it there")
        text = content(path)
        files.append(File.generated(config, in_site(path), content=text))
        waiting += links(path, text)
    files.append(File.generated(config, "llms.txt", content=llms_text()))
    for name in PACKAGES:
        files.append(File.generated(config, f"reference/{name}.md", content=reference(name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    path = of_repository(page.file.src_uri)
    if path is None:
        return markdown
    here = posixpath.dirname(page.file.src_uri)

    def rewrite(match: re.Match[str]) -> str:
        target = resolve(path, match["target"])
        if target is None:
            return match[0]
        return f"{match['before']}{os.path.relpath(in_site(target), here or '.')}{match['rest']}"

    # Every second part is code, which stays as it is.
    return "".join(part if number % 2 else LINK.sub(rewrite, part) for number, part in enumerate(CODE.split(markdown)))
