"""Hooks of mkdocs.yml: pages made from the code, files outside docs/ that pages link to, and a check of the site."""

from __future__ import annotations

import logging
import posixpath
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = "reference/commands.md"
COPIES = "files"
"""The site's folder for files that lie outside docs/."""
ALWAYS = ("CONTRIBUTING.md", "SECURITY.md")
"""Files outside docs/ that mkdocs.yml names."""
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")}
ELSEWHERE = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])((?:https?:)?//[^'\")\s]*)")
log = logging.getLogger("mkdocs.plugins.pulse")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every decision into the navigation, in order, in place of their folder's name."""
    decisions = sorted(f"adr/{path.name}" for path in (ROOT / "docs" / "adr").glob("*.md"))
    for section in config.nav or []:
        for name, entries in section.items():
            if isinstance(entries, list):
                section[name] = [
                    {"Decisions": decisions} if entry == {"Decisions": "adr/"} else entry for entry in entries
                ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of all commands, and a copy of each file outside docs/ that a page links to."""
    files.append(File.generated(config, COMMANDS, content=commands()))
    texts = {origin(page.src_uri): page.content_string for page in files.documentation_pages()}
    seen: set[str] = set()
    ahead = [*ALWAYS, *(path for page, text in texts.items() for path in linked(page, text))]
    while ahead:
        path = ahead.pop()
        if path in seen or path.startswith("docs/"):
            continue
        seen.add(path)
        files.append(File.generated(config, f"{COPIES}/{path}", abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            ahead += linked(path, (ROOT / path).read_text(encoding="utf-8"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    here = posixpath.dirname(page.file.src_uri) or "."

    def local(link: re.Match[str]) -> str:
        path = target(origin(page.file.src_uri), link[2])
        return link[0] if path is None else link[1] + posixpath.relpath(place(path), here) + link[3]

    return LINK.sub(local, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Warn, which ends a strict build, of what the site loads from elsewhere, and of links that lead nowhere."""
    for fault in faults(Path(config.site_dir)):
        log.warning(fault)


def origin(page: str) -> str:
    """Return the path of a page's source from the repository's root."""
    return page.removeprefix(f"{COPIES}/") if page.startswith(f"{COPIES}/") else f"docs/{page}"


def place(path: str) -> str:
    """Return where the site has a file of the repository: the inverse of `origin`."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{COPIES}/{path}"


def target(source: str, link: str) -> str | None:
    """Return the file of the repository that a relative link leads to; None: there is none, or it is the site's own."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return path if (ROOT / path).is_file() else None


def linked(source: str, markdown: str) -> list[str]:
    """Return the files of the repository that a Markdown text links to."""
    return [path for link in LINK.finditer(markdown) if (path := target(source, link[2])) is not None]


def commands() -> str:
    """Return the Markdown that typer makes of the command line."""
    command = [sys.executable, "-m", "typer", "pulse_registry.cli.app", "utils", "docs", "--name", "pulse"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise PluginError(f"typer did not describe the command line: {done.stderr}")
    return "# All commands and options\n" + done.stdout.partition("\n")[2]


class References(HTMLParser):
    """What a page loads, what it links to, and the names of its parts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Take what one element names."""
        for name, value in attributes:
            if value and (tag, name) in LOADED and dict(attributes).get("rel") not in ("canonical", "next", "prev"):
                self.loads.append(value)
            elif value and (tag, name) == ("a", "href"):
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.names.add(value)


def faults(site: Path) -> list[str]:
    """Return what a built site loads from other hosts, and its links to pages, files and parts that are not there."""

    @cache
    def read(page: Path) -> References:
        return References(page.read_text(encoding="utf-8"))

    found = []
    for page in sorted(site.rglob("*.html")):
        name, text = page.relative_to(site).as_posix(), read(page)
        named = [*text.loads, *ELSEWHERE.findall(page.read_text(encoding="utf-8"))]
        found += [f"{name} loads {address} from another host" for address in named if urlsplit(address).netloc]
        for address in {*text.loads, *text.links}:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or name == "404.html":
                continue
            to = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            to = to / "index.html" if to.is_dir() else to
            if not to.is_file():
                found.append(f"{name} links to {address}, which is not there")
            elif parts.fragment and to.suffix == ".html" and unquote(parts.fragment) not in read(to).names:
                found.append(f"{name} links to {address}, which has no such part")
    for style in sorted(site.rglob("*.css")):
        found += [
            f"{style.relative_to(site)} loads {address} from another host"
            for address in ELSEWHERE.findall(style.read_text(encoding="utf-8"))
        ]
    return found
