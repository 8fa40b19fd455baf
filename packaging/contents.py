"""Writes what the program is built from: a bill of materials (CycloneDX 1.6), and all licences.

Usage: contents.py VERSION PLATFORM BILL LICENCES. The crates are those that cargo links for the
platform, build scripts and tests left out; their licences are the files in their packages.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

TARGETS = {
    "x86_64-linux-gnu": "x86_64-unknown-linux-gnu",
    "x86_64-linux-musl": "x86_64-unknown-linux-musl",
    "aarch64-linux-gnu": "aarch64-unknown-linux-gnu",
    "aarch64-linux-musl": "aarch64-unknown-linux-musl",
    "x86_64-darwin": "x86_64-apple-darwin",
    "aarch64-darwin": "aarch64-apple-darwin",
}
# The program, and the procedural macros that run while it is compiled and leave nothing in it.
OPTIONS = ["--package", "oncebox-cli", "--edges", "normal,no-proc-macro", "--prefix", "none", "--locked"]


def cargo(*arguments: str) -> str:
    return subprocess.run(["cargo", *arguments], check=True, capture_output=True, text=True).stdout


def linked(target: str) -> list[dict]:
    """The packages in the program, sorted, as `cargo metadata` describes them."""
    lines = cargo("tree", *OPTIONS, "--target", target, "--format", "{p}").splitlines()
    names = {tuple(line.split()[:2]) for line in lines if line}
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--locked", "--filter-platform", target))
    found = [p for p in metadata["packages"] if (p["name"], f"v{p['version']}") in names]
    assert len(found) == len(names), "cargo tree and cargo metadata disagree"
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def expression(package: dict) -> str:
    """An SPDX expression; older packages write a slash for OR."""
    return re.sub(r"\s*/\s*", " OR ", package["license"] or "NOASSERTION")


def sums() -> dict[tuple[str, str], str]:
    """The checksums of the lock file, by name and version."""
    blocks = Path("Cargo.lock").read_text().split("[[package]]")
    fields = [dict(re.findall(r'^(name|version|checksum) = "(.*)"$', block, re.M)) for block in blocks]
    return {(f["name"], f["version"]): f["checksum"] for f in fields if "checksum" in f}


def bill(version: str, platform: str, packages: list[dict]) -> dict:
    known = sums()

    def component(package: dict) -> dict:
        purl = f"pkg:cargo/{package['name']}@{package['version']}"
        found = {
            "type": "library",
            "bom-ref": purl,
            "name": package["name"],
            "version": package["version"],
            "licenses": [{"expression": expression(package)}],
            "purl": purl,
        }
        if sum := known.get((package["name"], package["version"])):
            found["hashes"] = [{"alg": "SHA-256", "content": sum}]
        return found

    time = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    program = f"pkg:generic/oncebox@{version}?platform={platform}"
    components = [component(package) for package in packages]
    # The same for the same contents, since a new one would change the archive.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, program + json.dumps(components))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": program,
                "name": "oncebox",
                "version": version,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
            },
        },
        "components": components,
        "dependencies": [{"ref": program, "dependsOn": [c["bom-ref"] for c in components]}],
    }


def licences(packages: list[dict]) -> str:
    """Each text once, below the packages that have it."""
    texts: dict[str, tuple[str, list[str]]] = {}
    without = []
    for package in packages:
        name = f"{package['name']} {package['version']} ({expression(package)})"
        folder = Path(package["manifest_path"]).parent
        files = sorted(p for p in folder.iterdir() if re.match(r"(?i)(licen[cs]e|copying|notice|unlicense)", p.name))
        files = [p for p in files if p.is_file()]
        if not files:
            without.append(name)
        for path in files:
            text = path.read_text(errors="replace").strip()
            texts.setdefault(hashlib.sha256(text.encode()).hexdigest(), (text, []))[1].append(name)
    rule = "=" * 80
    parts = ["Software in the program oncebox, and its licences.\n"]
    parts += ["Packages that name their licence without its text:\n\n" + "".join(f"  {n}\n" for n in without)]
    for text, names in texts.values():
        parts.append(f"{rule}\n" + "".join(f"  {n}\n" for n in sorted(set(names))) + f"{rule}\n\n{text}\n")
    return "\n".join(parts)


def main() -> None:
    version, platform, bill_path, licences_path = sys.argv[1:]
    packages = linked(TARGETS[platform])
    foreign = [package for package in packages if package["source"]]
    Path(bill_path).write_text(json.dumps(bill(version, platform, packages), indent=2) + "\n")
    Path(licences_path).write_text(licences(foreign))


main()
