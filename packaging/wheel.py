"""Writes a wheel that has the program, so that `pip install oncebox-bin` gives `oncebox`.

Usage: wheel.py PROGRAM VERSION PLATFORM DIRECTORY. A wheel is a zip with a list of its files; what
lies in `*.data/scripts` goes to the environment's programs.
"""

import base64
import hashlib
import os
import sys
import time
import zipfile
from pathlib import Path

# The platforms that pip compares with the machine: the oldest C library, or the oldest macOS.
TAGS = {
    "x86_64-linux-gnu": "manylinux_2_17_x86_64.manylinux2014_x86_64",
    "aarch64-linux-gnu": "manylinux_2_17_aarch64.manylinux2014_aarch64",
    "x86_64-linux-musl": "musllinux_1_2_x86_64",
    "aarch64-linux-musl": "musllinux_1_2_aarch64",
    "x86_64-darwin": "macosx_10_12_x86_64",
    "aarch64-darwin": "macosx_11_0_arm64",
}

METADATA = """\
Metadata-Version: 2.4
Name: oncebox-bin
Version: {version}
Summary: The program oncebox: relay and operators' commands for PostgreSQL and NATS JetStream
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
License-File: THIRD-PARTY.txt
Requires-Python: >=3.9
Description-Content-Type: text/markdown

{readme}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: oncebox
Root-Is-Purelib: false
"""


def main() -> None:
    program, version, platform, directory = sys.argv[1:]
    tags = TAGS[platform]
    name, info = f"oncebox_bin-{version}", f"oncebox_bin-{version}.dist-info"
    readme = Path("packaging/archive.md").read_text().split("\n`man` has")[0]
    licences = ["LICENSE-APACHE", "LICENSE-MIT", f"{os.environ['OUT']}/THIRD-PARTY.txt"]
    files = {f"{name}.data/scripts/oncebox": Path(program).read_bytes()}
    files |= {f"{info}/licenses/{Path(path).name}": Path(path).read_bytes() for path in licences}
    files[f"{info}/METADATA"] = METADATA.format(version=version, readme=readme).encode()
    files[f"{info}/WHEEL"] = (WHEEL + "".join(f"Tag: py3-none-{tag}\n" for tag in tags.split("."))).encode()

    def record(path: str, content: bytes) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        return f"{path},sha256={digest},{len(content)}\n"

    lines = "".join(record(path, content) for path, content in files.items())
    files[f"{info}/RECORD"] = f"{lines}{info}/RECORD,,\n".encode()
    when = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
    with zipfile.ZipFile(f"{directory}/{name}-py3-none-{tags}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if "/scripts/" in path else 0o100644) << 16
            wheel.writestr(entry, content)


main()
