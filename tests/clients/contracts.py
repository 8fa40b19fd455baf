"""Reads the contracts of each folder, and checks its messages; prints a line of JSON for each folder: the mistakes, or what
each message breaks. See tests/it/clients/contracts.rs."""

import json
import sys
from pathlib import Path

from oncebox.contracts import Breach, Contracts, Mistakes


def broken(contracts: Contracts, subject: str, payload: str) -> str | None:
    try:
        return contracts.check(subject, bytes.fromhex(payload))
    except Breach as breach:
        return str(breach)


for folder in map(Path, sys.argv[1:]):
    try:
        contracts = Contracts.read(folder / "contracts.json")
        said = [broken(contracts, *message) for message in json.loads((folder / "messages").read_text())]
    except Mistakes as mistakes:
        said = str(mistakes).splitlines()
    print(json.dumps(said))
