"""Makes the site of the documentation: pages with search, each beside its plain Markdown, and llms.txt.

Usage: site.py TARGET_DIRECTORY; writes TARGET_DIRECTORY/site. Every page of the repository must stand
in packaging/site/SUMMARY.md, and every link must lead to a page, a heading or a file of the site.
"""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

SUMMARY = Path("packaging/site/SUMMARY.md")
# Pages of their package alone, and forms.
LEFT_OUT = re.compile(r"(packaging/(archive|site/SUMMARY)|[a-z-]+/README|\.github/.*)\.md")
IN_SITE = {"deploy/README.md", "docs/README.md", "findings/README.md", "packaging/README.md"}


def targets(text: str) -> list[str]:
    return re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)


def stage(source: Path) -> list[str]:
    """Lays out the pages as in the repository, with the files that they link to."""
    # The summary's own links begin where it stands; mdBook wants them from the top.
    summary = SUMMARY.read_text().replace("](../../", "](")
    pages = targets(summary)
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], capture_output=True, text=True, check=True)
    for page in listed.stdout.split():
        is_meant = page in IN_SITE or not LEFT_OUT.fullmatch(page)
        if is_meant != (page in pages):
            sys.exit(f"{page} {'is missing from' if is_meant else 'does not belong into'} {SUMMARY}")
    files = set(pages)
    for page in pages:
        links = [target for target in targets(Path(page).read_text()) if "://" not in target]
        files |= {str((Path(page).parent / target).resolve().relative_to(Path.cwd())) for target in links}
    for file in files:
        if Path(file).is_file():
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, source / file)
    for page in pages:
        # mdBook makes an index of each README, and leaves the links to it.
        text = (source / page).read_text()
        (source / page).write_text(re.sub(r"(\]\([^)\s]*)README\.md", r"\1index.md", text))
    (source / "SUMMARY.md").write_text(summary)
    return pages


def plain(site: Path, pages: list[str]) -> None:
    """For programs that read: each page as it was written, their list, and all of them in one file."""
    for page in pages:
        (site / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, site / page)
    shutil.copy("llms.txt", site / "llms.txt")
    whole = "\n".join(f"<!-- {page} -->\n\n{Path(page).read_text()}" for page in pages)
    (site / "llms-full.txt").write_text(whole)


class Page(HTMLParser):
    """The links of a page, and the places in it that links may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.places.add(value or "")
            elif name in ("href", "src") and value:
                self.links.append(value)


def check(site: Path) -> int:
    """Follows every link between the pages; returns their number."""
    # print.html repeats all pages in one, 404.html stands anywhere.
    found = [path for path in site.rglob("*.html") if path.name not in ("print.html", "404.html", "toc.html")]
    pages = {path.resolve(): Page(path.read_text()) for path in found}
    followed, broken = 0, []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:|//", link):
                continue
            file, _, place = unquote(link).partition("#")
            target = (path.parent / file.partition("?")[0]).resolve() if file else path
            if target.is_dir():
                target /= "index.html"
            known = not place or target not in pages or place in pages[target].places
            if not target.is_file() or not known:
                broken.append(f"{path.relative_to(site.resolve())}: {link}")
            followed += 1
    listed = [target for target in targets((site / "llms.txt").read_text()) if "://" not in target]
    broken += [f"llms.txt: {target}" for target in listed if not (site / target).is_file()]
    if broken or not followed or not listed:
        sys.exit("links that lead nowhere:\n" + "\n".join(broken))
    return followed + len(listed)


def main() -> None:
    target = Path(sys.argv[1])
    book, site = target / "book", target / "site"
    for folder in (book, site):
        shutil.rmtree(folder, ignore_errors=True)
    book.mkdir(parents=True)
    shutil.copy("packaging/site/book.toml", book)
    pages = stage(book / "src")
    subprocess.run([".dev/packaging/bin/mdbook", "build", book, "--dest-dir", site.resolve()], check=True, stderr=subprocess.DEVNULL)
    plain(site, pages)
    print(f"{len(pages)} pages in {site}, {check(site)} links followed")


main()
