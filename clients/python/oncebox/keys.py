"""Keys, derived as in SQL and Rust: a root and any number of levels, `root:step:#part:undo`."""

import re

_STEP = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VISIBLE = re.compile(r"[!-~]+")
_PART = re.compile(r"#(0|[1-9][0-9]{0,9})")


def root_key(client_key: str) -> str:
    """The root key of a client's text: 1 to 128 visible ASCII characters; ":" and "%" are escaped."""
    if not 1 <= len(client_key.encode()) <= 128:
        raise ValueError(f"root key is {len(client_key.encode())} bytes long; the limit is 1 to 128 bytes")
    if not _VISIBLE.fullmatch(client_key):
        raise ValueError(f"root key {client_key!r} has a character outside visible ASCII")
    return _bounded(client_key.replace("%", "%25").replace(":", "%3A"))


def step_key(key: str, step: str) -> str:
    """The key of a step: `key:step`."""
    if not _STEP.fullmatch(step) or step == "undo" or step.startswith("oncebox-"):
        raise ValueError(f'step {step!r} does not match [a-z0-9][a-z0-9._-]{{0,63}}, or is "undo" or "oncebox-..."')
    return _bounded(f"{check_key(key)}:{step}")


def part_key(key: str, part: int) -> str:
    """The key of one of several messages that a step sends: `key:#part`."""
    if not 0 <= part <= 4294967295:
        raise ValueError(f"part {part} is not 0 to 4294967295")
    return _bounded(f"{check_key(key)}:#{part}")


def undo_key(key: str) -> str:
    """The key of the compensation: `key:undo`."""
    if check_key(key).endswith(":undo"):
        raise ValueError(f"key {key!r} is an undo already")
    return _bounded(f"{key}:undo")


def check_key(key: str) -> str:
    """The key itself, if it is valid; else ValueError is raised."""
    _bounded(key)
    root, *levels = key.split(":")
    is_key = root_key(root.replace("%3A", ":").replace("%25", "%")) == root
    for before, level in zip(["", *levels], levels):
        part = _PART.fullmatch(level)
        is_key &= part is not None and int(part[1]) <= 4294967295 or _STEP.fullmatch(level) is not None
        is_key &= not before == level == "undo"
    if not is_key:
        raise ValueError(f'key {key!r} is not ROOT or ROOT:STEP...: write ":" and "%" of the root as %3A and %25')
    return key


def _bounded(key: str) -> str:
    if not 1 <= len(key.encode()) <= 255:
        raise ValueError(f"key is {len(key.encode())} bytes long; the limit is 1 to 255 bytes")
    return key
