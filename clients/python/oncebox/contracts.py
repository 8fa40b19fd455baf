"""Contracts in your tests: a message that the relay would refuse fails the test of its producer. See docs/contracts.md.

Needs `pip install oncebox[contracts]`."""

import json
import math
import re
from pathlib import Path, PurePosixPath
from typing import Any, Iterator
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.exceptions import SchemaError
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable, Unretrievable
from referencing.jsonschema import DRAFT202012

from .outbox import to_json

# Of the standard, with a host that no name server has, for the files beside the contracts.
_FOLDER, _DRAFT = "https://folder.invalid/", "https://json-schema.org/draft/2020-12/schema"
_NO_JSON = "the payload is not JSON, or nested too deeply"
_DEPTH_MAX, _TEXT_MAX, _SUBJECT_MAX = 127, 300, 255
_TOKEN = r"(?:\*|[!-)+,\-/-=?-~]+)"
_PATTERN = re.compile(rf'(?!\$|_INBOX\.|")(?:>|{_TOKEN}(?:\.{_TOKEN})*(?:\.>)?)')
# Regular expressions that take more than linear time, which relays refuse.
_IRREGULAR = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")
# Keywords of schemas whose values are data.
_DATA = ("const", "enum", "examples", "default")
# The words of the relay, for a rule with this value; the others are named by their place in the schema.
_RULES = {
    "type": lambda v: f'not of type "{v}"' if isinstance(v, str) else "not of types " + ", ".join(f'"{one}"' for one in v),
    "minimum": lambda v: f"less than the minimum of {v}",
    "maximum": lambda v: f"greater than the maximum of {v}",
    "exclusiveMinimum": lambda v: f"less than or equal to the minimum of {v}",
    "exclusiveMaximum": lambda v: f"greater than or equal to the maximum of {v}",
    "multipleOf": lambda v: f"not a multiple of {v}",
    "minLength": lambda v: f"shorter than {v} character{'' if v == '1' else 's'}",
    "maxLength": lambda v: f"longer than {v} character{'' if v == '1' else 's'}",
    "anyOf": lambda _: "not valid under any of the schemas listed in the 'anyOf' keyword",
}


class Mistakes(ValueError):
    """All that is wrong with a file of contracts, a line each."""


class Breach(AssertionError):
    """A payload breaks its contract. Nothing of the payload is shown, as in the relay."""

    def __init__(self, pointer: str, reason: str):
        self.pointer, self.reason = pointer[:_TEXT_MAX], reason if len(reason) <= _TEXT_MAX else f"{reason[:_TEXT_MAX]}..."
        super().__init__(f"at {self.pointer}: {self.reason}" if pointer else self.reason)


class Contracts:
    """The contracts of a file, as `oncebox contract check` and the relay read it."""

    def __init__(self, contracts: list[tuple[str, "_Schema"]]):
        self._contracts = contracts

    @classmethod
    def read(cls, path: str | Path) -> "Contracts":
        """Reads a file, and the files beside it that its schemas refer to; raises `Mistakes`."""
        path, contracts, mistakes = Path(path), [], []
        try:
            document = _parse(path.read_bytes())
            entries = _fields(document, {"contracts": list}, {"title": str, "version": str})["contracts"]
        except (OSError, ValueError) as error:
            raise Mistakes(f"{path}: {error}") from None
        for number, entry in enumerate(entries):
            at = f"{path}: /contracts/{number}"
            try:
                _fields(entry, {"subject": str, "schema": object}, {"consumers": list, "examples": list})
            except ValueError as error:
                mistakes.append(f"{at}: {error}")
                continue
            subject = entry["subject"]
            if not _PATTERN.fullmatch(subject) or len(subject) > _SUBJECT_MAX:
                mistakes.append(f'{at}/subject: "{subject}" is no subject, and no pattern of subjects')
            elif other := next((other for other, _ in contracts if _overlap(other, subject)), None):
                mistakes.append(f'{at}/subject: "{subject}" has subjects in common with "{other}"; a message has one contract')
            try:
                schema = _Schema(entry["schema"], path.parent)
            except (OSError, ValueError) as error:
                mistakes.append(f"{at}/schema: {error}")
                continue
            for place, example in enumerate(entry.get("examples", [])):
                if breach := schema.breach(example):
                    mistakes.append(f"{at}/examples/{place}: breaks the schema: {breach}")
            contracts.append((subject, schema))
        if mistakes:
            raise Mistakes("\n".join(mistakes))
        return cls(contracts)

    def check(self, subject: str, payload: Any) -> None:
        """Raises `Breach` for a payload, bytes or a value that has JSON, that the relay would refuse."""
        schema = next((schema for pattern, schema in self._contracts if _overlap(pattern, subject)), None)
        if schema is None:
            return
        try:
            value = _parse(bytes(payload) if isinstance(payload, (bytes, bytearray, memoryview)) else to_json(payload))
        except ValueError:
            raise Breach("", _NO_JSON) from None
        if breach := schema.breach(value):
            raise breach


class _Schema:
    def __init__(self, schema: Any, folder: Path):
        self._folder, self._names = folder, set()
        registry = Registry(retrieve=lambda uri: Resource(self._file(uri), DRAFT202012))
        self._check(schema)
        root = {"$id": f"{_FOLDER}.schema", **schema} if isinstance(schema, dict) else schema
        self._validator = _Validator(root, registry=registry)
        self._look_up(registry, root, f"{_FOLDER}.schema", set())

    def breach(self, value: Any) -> Breach | None:
        try:
            error = next(self._validator.iter_errors(value), None)
        except RecursionError:
            return Breach("", _NO_JSON)
        if error is None:
            return None
        # jsonschema names the array, where items must be none, and not the first of them.
        item = [len(error.schema["prefixItems"])] if error.validator == "items" and isinstance(error.instance, list) else []
        return Breach("".join(self._shown(segment) for segment in [*error.absolute_path, *item]), _reason(error))

    def _shown(self, segment: str | int) -> str:
        if isinstance(segment, str) and segment not in self._names:
            return "/*"
        return "/" + str(segment).replace("~", "~0").replace("/", "~1")

    def _check(self, schema: Any) -> None:
        """A part of what `Draft202012Validator` does not refuse."""
        if not isinstance(schema, (dict, bool)):
            raise ValueError("is not a JSON Schema: neither an object nor true or false")
        for part in _parts(schema):
            self._names.update(part)
            draft = part.get("$schema", _DRAFT)
            if isinstance(draft, str) and draft.rstrip("#") != _DRAFT:
                raise ValueError(f'is written in "{draft}"; use "{_DRAFT}", or leave $schema out')
            names = part.get("patternProperties", {})
            for pattern in [part.get("pattern"), *(names if isinstance(names, dict) else ())]:
                if isinstance(pattern, str):
                    _compiled(pattern)
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise ValueError(f"/{'/'.join(map(str, error.absolute_path))}: {error.message}") from None

    def _file(self, uri: str) -> Any:
        parts = PurePosixPath(unquote(urlsplit(uri).path).removeprefix("/")).parts
        if not uri.startswith(_FOLDER):
            raise ValueError(f"{uri}: a schema refers only to files in the folder of its contracts, or below")
        if not parts or ".." in parts or parts[0].startswith("/"):
            raise ValueError(f"{uri}: the file lies outside of the folder of the contracts")
        schema = _parse(self._folder.joinpath(*parts).read_bytes())
        self._check(schema)
        return schema

    def _look_up(self, registry: Registry, schema: Any, base: str, seen: set[str]) -> None:
        """Finds all references, now and not at the first payload that needs them."""
        if base == f"{_FOLDER}.schema":
            registry = registry.with_resource(base, Resource(schema, DRAFT202012))
        for part in _parts(schema):
            if not isinstance(reference := part.get("$ref"), str):
                continue
            target = urljoin(base, reference)
            try:
                file = urldefrag(target).url
                found = registry.get_or_retrieve(file).value.contents
                registry.resolver(base).lookup(reference)
            except (Unresolvable, Unretrievable) as error:
                raise ValueError(f"{reference}: {error.__cause__ or error}") from None
            if file not in seen:
                seen.add(file)
                self._look_up(registry, found, file, seen)


def _parts(schema: Any) -> Iterator[dict]:
    """All objects of a schema, but not those of data."""
    if isinstance(schema, dict):
        yield schema
    inner = schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
    for name, value in inner:
        if name not in _DATA:
            yield from _parts(value)


def _reason(error: ValidationError) -> str:
    keyword, value = error.validator, error.validator_value
    if "propertyNames" in error.absolute_schema_path:
        keyword = None
    if keyword in _RULES:
        return f"the value is {_RULES[keyword](_text(value) if not isinstance(value, (str, list)) else value)}"
    if keyword == "required":
        return f"{_text(next(name for name in value if name not in error.instance))} is a required property"
    if keyword == "const":
        return f"{_text(value)} was expected"
    if keyword == "enum":
        return f"the value is not one of {', '.join(map(_text, value[:-1]))}{' or ' if value[1:] else ''}{_text(value[-1])}"
    if keyword == "pattern":
        return f'the value does not match "{value}"'
    if keyword == "uniqueItems":
        return "the value has non-unique elements"
    place = "".join(f"/{segment}" for segment in error.absolute_schema_path)
    return f"breaks {place} of the schema" if place else "breaks the schema"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _compiled(pattern: str) -> re.Pattern:
    """A regular expression of the standard for JSON: classes are ASCII, and `$` is the end."""
    if _IRREGULAR.search(pattern):
        raise ValueError(f"/pattern: {pattern!r} has a look-around or a backreference")
    pieces = re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|.", pattern, re.DOTALL)
    try:
        return re.compile("".join(r"\Z" if piece == "$" else piece for piece in pieces), re.ASCII)
    except re.error as error:
        raise ValueError(f"/pattern: {pattern!r}: {error}") from None


def _matches(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and not _compiled(pattern).search(value):
        yield ValidationError("does not match")


def _matching_names(validator: Any, patterns: dict, value: Any, _: Any) -> Iterator[ValidationError]:
    for pattern, schema in patterns.items() if isinstance(value, dict) else ():
        for name in filter(_compiled(pattern).search, value):
            yield from _property(validator, value, name, pattern, schema)


def _properties(validator: Any, schemas: dict, value: Any, _: Any) -> Iterator[ValidationError]:
    for name, schema in schemas.items() if isinstance(value, dict) else ():
        if name in value:
            yield from _property(validator, value, name, name, schema)


def _property(validator: Any, value: dict, name: str, place: str, schema: Any) -> Iterator[ValidationError]:
    if schema is False:  # for which `descend` forgets the place
        yield ValidationError("must not be there", path=[name], schema_path=[place])
    else:
        yield from validator.descend(value[name], schema, path=name, schema_path=place)


_OWN = {"pattern": _matches, "patternProperties": _matching_names, "properties": _properties}
_Validator = validators.extend(Draft202012Validator, _OWN)


def _overlap(one: str, other: str) -> bool:
    """Whether two patterns have a subject in common, or a subject is of a pattern."""
    ones, others = one.split("."), other.split(".")
    for a, b in zip(ones, others):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(ones) == len(others)


def _fields(given: Any, needed: dict[str, type], others: dict[str, type]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError("is no object")
    for name in [*(name for name in needed if name not in given), *(name for name in given if name not in needed | others)]:
        raise ValueError(f"{'has an unknown' if name in given else 'misses the'} field `{name}`")
    for name, value in given.items():
        if not isinstance(value, (needed | others)[name]):
            raise ValueError(f"/{name}: is of another type")
    return given


def _parse(payload: bytes) -> Any:
    """JSON as the relay reads it; raises `ValueError`."""
    try:
        value = json.loads(payload.decode(), parse_constant=float)
        _look(value, 0)
    except (RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from None
    return value


def _look(value: Any, depth: int) -> None:
    """Refuses what Python takes: numbers without a value, half of a character, and too deep a nesting."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, (int, float)) and not math.isfinite(float(value)):
        raise ValueError("a number is out of range")
    elif isinstance(value, (list, dict)):
        if depth == _DEPTH_MAX:
            raise ValueError("it is nested too deeply")
        for inner in value if isinstance(value, list) else [*value, *value.values()]:
            _look(inner, depth + 1)
