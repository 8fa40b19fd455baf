"""Does what a tutorial's reader does, in this directory: writes the files, runs the commands, and compares.

A block whose first line is a comment `FILE: ...` becomes that file. A block of `sh` is run; if its first line is a
comment `terminal N`, it goes on while the others run. A block of `text` behind a command has lines that the command
must print, each with its words in this order, at the latest after WITHIN seconds of trying again.
Usage: tutorial.py PAGE; ends with an error at the first command that does not do what the page says.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

WITHIN = 30.0
NOBODY = 65534
FILE = re.compile(r"(?://|#) ([\w./-]+\.\w+): ")
TERMINAL = re.compile(r"# terminal \d")
# The variables that earlier commands have exported, and the folder that they have gone to.
STATE = Path("state").resolve()
AFTER = f'\n{{ export -p; echo "cd \'$PWD\'"; }} >{STATE}'


def main(page: Path) -> None:
    STATE.touch()
    terminals: list[tuple[subprocess.Popen[bytes], str]] = []
    taken: dict[str, str] = {}
    said = run = ""
    try:
        for language, text in re.findall(r"^```(\w+).*?\n(.*?)^```$", page.read_text(), re.M | re.S):
            # The ports of the page may be taken on this machine.
            text = re.sub(r"\b(8000|8321)\b", lambda port: taken.setdefault(port[0], free()), text)
            if language == "text":
                expect(text, said, run)
            elif language == "sh" and TERMINAL.match(text):
                terminals.append((start(text, len(terminals), taken), text))
            elif language == "sh":
                said, run = shell(text), text
            elif named := FILE.match(text):
                file = folder() / named[1]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        check(terminals)
    finally:
        stop(terminals)


def free() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def folder() -> Path:
    return Path(subprocess.check_output(["bash", "-c", f"source {STATE}; pwd"], text=True).strip())


def shell(text: str) -> str:
    begun = time.monotonic()
    program = f"set -e; source {STATE}; set -x; {text}\n{{ set +x; }} 2>/dev/null{AFTER}"
    done = subprocess.run(["bash", "-c", program], stdout=subprocess.PIPE, text=True, timeout=120)
    print(f"{done.stdout}({time.monotonic() - begun:.1f} s)", flush=True)
    if done.returncode:
        raise SystemExit(f"ended with {done.returncode}: {text}")
    return done.stdout


def expect(text: str, said: str, run: str) -> None:
    """Asks again until it says what the page says: a message takes its time."""
    deadline = time.monotonic() + WITHIN
    lines = {line: re.compile(r"\s(?:.*\s)?".join(map(re.escape, line.split()))) for line in text.splitlines()}
    while missing := [line for line, words in lines.items() if not words.search(said)]:
        if time.monotonic() > deadline:
            raise SystemExit(f"it does not print {missing}: {run}")
        time.sleep(0.3)
        said = shell(run)


def start(text: str, number: int, taken: dict[str, str]) -> subprocess.Popen[bytes]:
    """In a group of its own, as a terminal has one; `oncebox dev` as a user who may run PostgreSQL."""
    log, is_dev = Path(f"terminal-{number}.log"), "oncebox dev" in text
    command, added = ["bash", "-c", f"source {STATE}; exec {text.splitlines()[1]}"], {}
    if is_dev:
        added = {"ONCEBOX_HTTP_LISTEN": "off"}
        Path("data").mkdir()
        if os.getuid() == 0:
            os.chown("data", NOBODY, NOBODY)
            command[:0] = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        command[-1] += f" --dir data --console-listen 127.0.0.1:{taken.setdefault('8321', free())}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **added}, start_new_session=True
        )
    deadline = time.monotonic() + 2 * WITHIN
    while is_dev and not (exported := re.search(r"^export DATABASE_URL=.*$", log.read_text(), re.M)):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"`oncebox dev` does not begin: {log.read_text()}")
        time.sleep(0.1)
    if is_dev:
        STATE.write_text(f"{STATE.read_text()}\n{exported[0]}\n")
    return process


def check(terminals: list[tuple[subprocess.Popen[bytes], str]]) -> None:
    for process, text in terminals:
        if process.poll() is not None:
            raise SystemExit(f"has ended by itself: {text}")


def stop(terminals: list[tuple[subprocess.Popen[bytes], str]]) -> None:
    """As Ctrl-C does."""
    for number, (process, text) in reversed(list(enumerate(terminals))):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        try:
            code = process.wait(WITHIN)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = None
        print(f"{text}{Path(f'terminal-{number}.log').read_text()}")
        if code is None or (code and "oncebox dev" in text):
            raise SystemExit(f"ended with {code}: {text}")


main(Path(sys.argv[1]))
