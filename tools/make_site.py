"""Builds the site from the pages of the repository: make_site.py PENSTOCK PACKAGES.

PENSTOCK is the command, whose --help becomes a page. PACKAGES is the folder of the installed Python package, whose
docstrings become a page. Each layer's headers become a page, too. The pages lie in build/docs/pages as they lie in the
repository, so their links stay as they are. A link that leads nowhere, a page that is not in mkdocs.yml, and a public name without a description are errors.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "site"
PAGES = ROOT / "build" / "docs" / "pages"
PACKAGES = ROOT / "build" / "docs" / "packages"
COPIED = ("*.md", "LICENSE", "docs/**/*.md", "docs/*.svg", "docs/schemas/*.json", "doctor/*.md", "python/LICENSES*")
API = """# The Python API

Everything that `penstock` has. [Which one do I use?](which.md) says where to begin.

::: penstock
"""


def help_of(command: list) -> str:
    return subprocess.run([*command, "--help"], check=True, capture_output=True, text=True).stdout


def sections(command: list, level: int = 2) -> str:
    """What the command says of itself, and then each of its subcommands."""
    text = help_of(command)
    name = " ".join(["penstock", *command[1:]])
    page = f"{'#' * level} {name}\n\n```text\n{text.rstrip()}\n```\n\n"
    below = re.search(r"^Subcommands:\n((?: .*\n)+)", text, re.MULTILINE)
    for line in below[1].splitlines() if below else ():
        if re.match(r"  \w", line):
            page += sections([*command, line.split()[0]], level + 1)
    return page


def headers(layer: pathlib.Path) -> str:
    """The headers of a layer without what they include and what is private: their comments are the contracts."""
    private = r"\A(#[^\n]*\n|\n)+|\n   private:\n.*?(?=\n  };)|\n private:\n.*?(?=\n};)"
    page = f"---\nhide: [toc]\n---\n\n# C++: {layer.name}\n\n"
    for header in sorted(layer.glob("*.hpp")):
        text = re.sub(private, "", header.read_text(), flags=re.DOTALL)
        page += f"## {header.relative_to(ROOT / 'include')}\n\n```cpp\n{text}```\n\n"
    return page


def gather(penstock: str, packages: pathlib.Path) -> None:
    shutil.rmtree(PAGES.parent, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    for pattern in COPIED:
        for source in ROOT.glob(pattern):
            target = PAGES / source.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    (PAGES / "docs" / "api.md").write_text(API)
    (PAGES / "docs" / "command.md").write_text("# The command\n\n" + sections([penstock]))
    (PAGES / "docs" / "cpp").mkdir()
    for layer in (ROOT / "include" / "penstock").iterdir():
        (PAGES / "docs" / "cpp" / f"{layer.name}.md").write_text(headers(layer))
    shutil.copy(ROOT / "mkdocs.yml", SITE.parent)
    PACKAGES.mkdir()
    for_assistants = (ROOT / "docs" / "llms.txt").read_text()
    (PAGES / "llms.txt").write_text(re.sub(r"\]\(([\w-]+)\.md\)", r"](docs/\1/)", for_assistants))
    (PACKAGES / "penstock").symlink_to(packages / "penstock")


def link_api() -> None:
    """Links the pages and the public names that docstrings name."""
    page = SITE / "docs/api/index.html"
    text = re.sub(r"\bdocs/([a-z-]+)\.md\b", r'<a href="../\1/">\g<0></a>', page.read_text())
    page.write_text(re.sub(r"(?<=[ (])<code>(?:penstock\.)?(\w+)</code>", link_name(text), text))


def link_name(page: str):
    def link(found: re.Match) -> str:
        anchor = f"penstock.{found[1]}"
        return f'<a href="#{anchor}">{found[0]}</a>' if f'id="{anchor}"' in page else found[0]

    return link


def dead_links() -> list:
    """Links between the site's pages to files that it lacks. Zensical itself looks only at links to pages."""
    dead = []
    for page in SITE.rglob("*.html"):
        for target in re.findall(r'<(?:a|img)\b[^>]*?\b(?:href|src)="?([^">\s]+)', page.read_text()):
            path = urllib.parse.unquote(urllib.parse.urlsplit(target).path)
            if re.match(r"[a-z]+:|//|/|#", target) or not path:
                continue
            found = page.parent / path
            if not (found / "index.html" if found.is_dir() else found).is_file():
                dead.append(f"{page.relative_to(SITE)}: {target}")
    return dead


def check() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    lab = (PAGES / "docs" / "lab" / "README.md").read_text()  # leads to the lab's other pages
    named |= {f"docs/lab/{page}" for page in re.findall(r"\]\(([\w-]+\.md)\)", lab)}
    there = {str(page.relative_to(PAGES)) for page in PAGES.rglob("*.md")}
    if named != there:
        sys.exit(f"mkdocs.yml, docs/lab/README.md and the pages differ: {sorted(named ^ there)}")
    if dead := dead_links():
        sys.exit("links that lead nowhere:\n" + "\n".join(dead))
    if empty := [page for page in SITE.glob("docs/cpp/*/index.html") if "///" not in page.read_text()]:
        sys.exit(f"pages of headers without a contract: {empty}")
    api = (SITE / "docs/api/index.html").read_text()
    public = re.findall(r'^    "([A-Za-z]\w+)",$', (PACKAGES / "penstock/__init__.py").read_text(), re.MULTILINE)
    missing = [name for name in public if f'id="penstock.{name}"' not in api]
    if missing or not public:
        sys.exit(f"the page of the Python API lacks {missing}")


if __name__ == "__main__":
    gather(sys.argv[1], pathlib.Path(sys.argv[2]).resolve())
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=SITE.parent, check=True)
    link_api()
    check()
