"""Headers as all consumers read them: names compare without case, and blanks around values do not count."""

from typing import Any, Mapping


class Every(dict):
    """The headers as nats-py reads them, and beside them each value of each name, of which it keeps the last."""

    def __init__(self, headers: Mapping[str, str], raw: bytes):
        super().__init__(headers)
        self.sent: dict[str, list[str]] = {}
        for line in raw.split(b"\r\n")[1:]:
            name, colon, value = line.decode(errors="replace").partition(":")
            if colon:
                self.sent.setdefault(name, []).append(value.strip(" \t"))


def keep_all(client: Any) -> None:
    """Has this client keep each value of a header; nats-py has no setting for it."""
    process = client._process_headers
    if getattr(process, "keeps_all", False):
        return

    async def process_all(raw: bytes) -> dict[str, str] | None:
        headers = await process(raw)
        return Every(headers or {}, raw) if raw else headers

    process_all.keeps_all = True
    client._process_headers = process_all


def of(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Names in lower case; the different values of one name are the lines of its text."""
    return joined(sent(headers))


def joined(sent: Mapping[str, list[str]]) -> dict[str, str]:
    """The same of names and values as they came."""
    values_of: dict[str, list[str]] = {}
    for name, values in sent.items():
        values_of.setdefault(name.lower(), []).extend(values)
    return {name: "\n".join(dict.fromkeys(values)) for name, values in values_of.items()}


def sent(headers: Mapping[str, str] | None) -> dict[str, list[str]]:
    """The names as they came, and each value of each."""
    return getattr(headers, "sent", None) or {name: [value] for name, value in (headers or {}).items()}


def single(headers: Mapping[str, str], name: str) -> str | None:
    """The value of a header; ValueError if it has several different ones."""
    same = [value for other, value in headers.items() if other.lower() == name.lower()]
    values = {line.strip(" \t") for value in same for line in value.split("\n")}
    if len(values) > 1:
        raise ValueError(f"header {name} has several different values")
    return values.pop() if values else None


def matches(pattern: list[str], subject: list[str]) -> bool:
    """Whether a subject matches a pattern of NATS, both as their tokens."""
    if pattern and pattern[-1] == ">":
        return len(subject) >= len(pattern) and matches(pattern[:-1], subject[: len(pattern) - 1])
    return len(pattern) == len(subject) and all(wanted in ("*", token) for wanted, token in zip(pattern, subject))
