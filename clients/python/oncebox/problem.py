"""The answers of the HTTP layer itself, `application/problem+json`: those of the crate oncebox-http."""

import json

_SAME = "Send it again with the same key."
# Status, title, detail.
PROBLEMS = {
    "key-missing": (400, "This request needs an idempotency key", "Send a new key of high entropy, such as a UUID, with every new request, and the same key with every repetition of it."),
    "key-malformed": (400, "The idempotency key cannot be read", "The key is one string of 1 to 128 visible ASCII characters without blanks, in double quotes or, without any of the characters \" \\ , ; in it, bare; given once."),
    "tenant-missing": (403, "The request belongs to nobody", "The server could not tell for whom the request is made."),
    "method-unknown": (501, "The method is not known here", "Nothing was done."),
    "key-reused": (422, "The idempotency key was used for another request", "The first request with this key had another path, query, content type or body, or other credentials. If this one repeats it, send what you sent first: with a new key it would be done again. Use a new key only for a new request."),
    "in-flight": (409, "A request with this idempotency key is being worked on", f"Its outcome is not known yet. {_SAME}"),
    "body-too-large": (413, "The request's body is too large", "Nothing was done."),
    "body-unreadable": (400, "The request's body ended too early", f"Nothing was done. {_SAME}"),
    "response-not-kept": (410, "The request was done, but its response is gone", "Its body was too large to keep. The request was not done a second time, and need not be."),
    "response-unknown": (410, "A part of the request may be done", "The first request with this key failed after a part of it was committed. The request was not done a second time."),
    "unavailable": (503, "The database is not available", f"Whether the request was done is not known. {_SAME}"),
    "too-slow": (503, "The request took too long", f"It has no outcome. {_SAME}"),
    "failed": (500, "The request failed", f"It has no outcome. {_SAME}"),
    "set-up-wrongly": (500, "The server is set up wrongly", "Nothing was done."),
}


class Problem(Exception):
    """Why a request is refused."""

    def __init__(self, name: str, first_status: int | None = None):
        super().__init__(name)
        self.name, self.first_status = name, first_status

    def response(self, retry_after: int, documentation: str | None) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        status, title, detail = PROBLEMS[self.name]
        kind = "response-not-kept" if self.name == "response-unknown" else self.name
        told = {"type": f"urn:oncebox:problem:{kind}", "title": title, "status": status, "detail": detail}
        if self.first_status is not None:
            told["first_status"] = self.first_status
        headers = [(b"content-type", b"application/problem+json")]
        if status in (409, 503):
            headers.append((b"retry-after", str(max(retry_after, 1)).encode()))
        if documentation is not None:
            headers.append((b"link", f'<{documentation}>; rel="describedby"'.encode()))
        return status, headers, json.dumps(told).encode()
