"""The Python client judges and derives keys as the vectors say: the file in VECTORS."""

import os
import re

from oncebox import part_key, root_key, step_key, undo_key
from oncebox.keys import check_key

def refused(function, *arguments):
    try:
        function(*arguments)
    except ValueError:
        return True
    return False

judged = 0
for line in open(os.environ["VECTORS"], encoding="utf-8"):
    if not line.startswith("#"):
        verdict, key = line.rstrip("\n").split("\t", 1)
        key = re.sub(r"\{([^{}]+)\*(\d+)\}", lambda repeat: repeat[1] * int(repeat[2]), key)
        assert refused(check_key, key) == (verdict == "bad"), line
        judged += 1
assert judged > 50, judged

assert undo_key(part_key(step_key(root_key("a:b%"), "pay"), 3)) == "a%3Ab%25:pay:#3:undo"
assert root_key("x" * 128) and part_key("a", 4294967295) == "a:#4294967295"
for function, arguments in [
    (root_key, [""]),
    (root_key, ["x" * 129]),
    (root_key, ["a b"]),
    (step_key, ["a", "Pay"]),
    (step_key, ["a", "undo"]),
    (step_key, ["a", "oncebox-edit-1"]),
    (step_key, ["a", "s" * 65]),
    (step_key, ["a b", "pay"]),
    (part_key, ["a", -1]),
    (part_key, ["a", 4294967296]),
    (undo_key, ["a:undo"]),
]:
    assert refused(function, *arguments), (function, arguments)
print(f"{judged} vectors")
