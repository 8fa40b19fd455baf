"""Talks to a shop behind the idempotency layer: client.py PORT bad-input|conversation [known-methods]. Fails when an
answer is wrong. Some servers refuse methods that they do not know before the layer."""

import http.client
import json
import sys

PORT = int(sys.argv[1])


def send(method, path, headers, body, header_list=None):
    """One request on a connection of its own. Headers may repeat in header_list, and hold any bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
    connection.putrequest(method, path)
    for name, value in list(headers.items()) + (header_list or []):
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders()
    connection.send(body)
    response = connection.getresponse()
    answer = (response.status, response.headers, response.read())
    connection.close()
    return answer


def expect(what, condition, answer):
    if not condition:
        status, headers, body = answer
        sys.exit(f"{what}: got {status}\n{headers}{body!r}")


def problem(what, answer, status, kind, retry=None):
    expect(what, answer[0] == status, answer)
    expect(what, answer[1]["content-type"] == "application/problem+json", answer)
    told = json.loads(answer[2])
    expect(what, told["type"] == f"urn:oncebox:problem:{kind}" and told["status"] == status, answer)
    expect(what, told["title"] and told["detail"], answer)
    expect(what, answer[1]["retry-after"] == retry, answer)


def bad_input():
    key = "Idempotency-Key"
    malformed = [
        "", '""', '"', '"abc', 'abc"', '"a"b"', '"a\\b"', "a b", '"a b"', "a,b", '"a", "b"', '"a";p=1',
        "x" * 129, '"' + "x" * 129 + '"', ":" * 128, "\u00e4".encode(), b"\xff\xfe", '"\u00e4"'.encode(),
    ]
    for value in malformed:
        answer = send("POST", "/orders", {key: value}, b"7")
        problem(f"key {value!r}", answer, 400, "key-malformed")
        expect("documentation", answer[1]["link"] == '<https://shop.example/docs/idempotency>; rel="describedby"', answer)
    answer = send("POST", "/orders", {}, b"7", [(key, "a"), (key, "b")])
    problem("two keys", answer, 400, "key-malformed")
    problem("no key", send("POST", "/orders", {}, b"7"), 400, "key-missing")
    problem("no key at PUT", send("PUT", "/orders", {}, b"7"), 400, "key-missing")
    for tenant in ["", "t" * 256, b"\xff"]:
        problem(f"tenant {tenant!r}", send("POST", "/orders", {key: "k", "X-Tenant": tenant}, b"7"), 403, "tenant-missing")
    problem("large body", send("POST", "/orders", {key: "k"}, b"7" * 1001), 413, "body-too-large")
    if "known-methods" not in sys.argv:
        problem("long method", send("X" * 21, "/orders", {key: "k"}, b"7"), 501, "method-unknown")

    # A body in chunks has no length to be judged by.
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
    connection.request("POST", "/orders", iter([b"7" * 600, b"7" * 600]), {key: "k"}, encode_chunked=True)
    response = connection.getresponse()
    problem("large chunks", (response.status, response.headers, response.read()), 413, "body-too-large")
    connection.close()

    # A body that ends too early: the client is gone, and nothing was done.
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
    connection.putrequest("POST", "/orders")
    connection.putheader(key, "k")
    connection.putheader("Content-Length", "10")
    connection.endheaders(b"7")
    connection.close()


def conversation():
    key, do = "Idempotency-Key", "X-Do"
    first = send("POST", "/orders", {key: '"8e03978e-40d5-43dd-bc93-6894a57f9324"'}, b"7")
    expect("first", first[0] == 201 and first[1]["idempotent-replayed"] == "false", first)
    for spelling in ['"8e03978e-40d5-43dd-bc93-6894a57f9324"', "8e03978e-40d5-43dd-bc93-6894a57f9324"]:
        again = send("POST", "/orders", {key: spelling}, b"7")
        expect("again", again[0] == 201 and again[1]["idempotent-replayed"] == "true", again)
        expect("body", again[2] == first[2], again)
        for name in ["content-type", "location", "etag"]:
            expect(name, again[1][name] == first[1][name] and first[1][name], again)
        expect("links", again[1].get_all("link") == first[1].get_all("link"), again)
    problem("reused", send("POST", "/orders", {key: "8e03978e-40d5-43dd-bc93-6894a57f9324"}, b"8"), 422, "key-reused")

    # The key of another tenant: neither its answer nor a trace of it.
    foreign = send("POST", "/orders", {key: "8e03978e-40d5-43dd-bc93-6894a57f9324", "X-Tenant": "other"}, b"8")
    expect("foreign", foreign[0] == 201 and foreign[1]["idempotent-replayed"] == "false", foreign)
    expect("foreign", foreign[1]["location"] != first[1]["location"], foreign)

    # The same words in another level of the key are another key.
    for text in ["a:pay", "a%3Apay"]:
        answer = send("POST", "/orders", {key: text}, b"7")
        expect(text, answer[0] == 201 and answer[1]["idempotent-replayed"] == "false", answer)

    no = send("POST", "/orders", {key: "no", do: "status:404"}, b"7")
    again = send("POST", "/orders", {key: "no", do: "order"}, b"7")
    expect("no", no[0] == again[0] == 404 and no[2] == again[2], again)
    failed = send("POST", "/orders", {key: "later", do: "status:503"}, b"7")
    expect("failed", failed[0] == 503 and failed[2] == b"status 503 of run 6", failed)
    problem("wrong body", send("POST", "/orders", {key: "large", do: "large:2000"}, b"7" * 300000), 413, "body-too-large")
    large = send("POST", "/orders", {key: "large", do: "large:2000"}, b"7")
    expect("large", large[0] == 201 and large[2] == b"x" * 2000, large)
    problem("not kept", send("POST", "/orders", {key: "large", do: "large:2000"}, b"7"), 410, "response-not-kept")

    # A body that the handler cannot read is refused by the handler, and stays refused.
    for replayed in ["false", "true"]:
        answer = send("POST", "/orders", {key: "words"}, b"seven")
        expect("words", answer[0] == 400 and answer[1]["idempotent-replayed"] == replayed, answer)

    # Reads need no key, and a key does not make them anything else.
    for headers in [{}, {key: "\"k\""}, {key: "not a key"}]:
        answer = send("GET", "/orders", headers, b"")
        expect("read", answer[0] == 200 and answer[1]["idempotent-replayed"] is None, answer)


{"bad-input": bad_input, "conversation": conversation}[sys.argv[2]]()
