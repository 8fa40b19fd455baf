"""Writes a Go module as the module proxy's protocol has it: version.info, version.mod, version.zip. Modules within it are not
parts of it.

Usage: gomodule.py FOLDER VERSION DIRECTORY
"""

import json
import os
import sys
import time
import zipfile
from pathlib import Path


def main() -> None:
    folder, version, directory = Path(sys.argv[1]), f"v{sys.argv[2]}", Path(sys.argv[3])
    manifest = (folder / "go.mod").read_text()
    module = manifest.split("module ", 1)[1].split()[0]
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    name = directory / f"{module.replace('oncebox', 'oncebox-go', 1).replace('/', '-')}-{version}"
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    name.with_name(f"{name.name}.info").write_text(json.dumps({"Version": version, "Time": stamp}) + "\n")
    name.with_name(f"{name.name}.mod").write_text(manifest)
    within = [manifest.parent for manifest in folder.rglob("go.mod") if manifest.parent != folder]
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not any(path.is_relative_to(inner) for inner in within))
    paths += [Path("LICENSE-APACHE"), Path("LICENSE-MIT")]
    with zipfile.ZipFile(name.with_name(f"{name.name}.zip"), "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            inner = path.relative_to(folder) if path.is_relative_to(folder) else path
            entry = zipfile.ZipInfo(f"{module}@{version}/{inner}", time.gmtime(epoch)[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())


main()
