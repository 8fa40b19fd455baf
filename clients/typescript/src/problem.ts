/**
 * The answers of the HTTP layer itself, `application/problem+json`: those of the crate oncebox-
 * http.
 */

/** A whole response. The characters of a header's value are the bytes that are sent. */
export interface Answer {
  status: number;
  headers: [name: string, value: string][];
  body: Buffer;
}

/** The headers that a framework has set, but for the length. */
export function pairs(headers: Record<string, unknown>): Answer["headers"] {
  const all = Object.entries(headers).flatMap(([name, value]) => (Array.isArray(value) ? value : [value]).map((one): [string, string] => [name, String(one)]));
  return all.filter(([name]) => name !== "content-length");
}

const SAME = "Send it again with the same key.";
const PROBLEMS = {
  "key-missing": [400, "This request needs an idempotency key", "Send a new key of high entropy, such as a UUID, with every new request, and the same key with every repetition of it."],
  "key-malformed": [400, "The idempotency key cannot be read", "The key is one string of 1 to 128 visible ASCII characters without blanks, in double quotes or, without any of the characters \" \\ , ; in it, bare; given once."],
  "tenant-missing": [403, "The request belongs to nobody", "The server could not tell for whom the request is made."],
  "method-unknown": [501, "The method is not known here", "Nothing was done."],
  "key-reused": [422, "The idempotency key was used for another request", "The first request with this key had another path, query, content type or body, or other credentials. If this one repeats it, send what you sent first: with a new key it would be done again. Use a new key only for a new request."],
  "in-flight": [409, "A request with this idempotency key is being worked on", `Its outcome is not known yet. ${SAME}`],
  "body-too-large": [413, "The request's body is too large", "Nothing was done."],
  "body-unreadable": [400, "The request's body ended too early", `Nothing was done. ${SAME}`],
  "response-not-kept": [410, "The request was done, but its response is gone", "Its body was too large to keep. The request was not done a second time, and need not be."],
  "response-unknown": [410, "A part of the request may be done", "The first request with this key failed after a part of it was committed. The request was not done a second time."],
  "unavailable": [503, "The database is not available", `Whether the request was done is not known. ${SAME}`],
  "too-slow": [503, "The request took too long", `It has no outcome. ${SAME}`],
  "failed": [500, "The request failed", `It has no outcome. ${SAME}`],
  "set-up-wrongly": [500, "The server is set up wrongly", "Nothing was done."],
} as const satisfies Record<string, readonly [status: number, title: string, detail: string]>;

/**
 * The service uses the layer in a way that could do a request twice: nothing is done, and the log
 * names the remedy.
 */
export class Misuse extends Error {
  override readonly name = "Misuse";
}

/** Why a request is refused. */
export class Problem extends Error {
  override readonly name = "Problem";
  readonly problem: keyof typeof PROBLEMS;
  readonly firstStatus: number | undefined;

  constructor(problem: keyof typeof PROBLEMS, firstStatus?: number) {
    super(problem);
    this.problem = problem;
    this.firstStatus = firstStatus;
  }

  answer(retryAfterSeconds: number, documentation?: string): Answer {
    const [status, title, detail] = PROBLEMS[this.problem];
    const type = `urn:oncebox:problem:${this.problem === "response-unknown" ? "response-not-kept" : this.problem}`;
    const told = { type, title, status, detail, ...(this.firstStatus === undefined ? {} : { first_status: this.firstStatus }) };
    const headers: Answer["headers"] = [["content-type", "application/problem+json"]];
    if (status === 409 || status === 503) {
      headers.push(["retry-after", String(Math.max(retryAfterSeconds, 1))]);
    }
    if (documentation !== undefined) {
      headers.push(["link", `<${documentation}>; rel="describedby"`]);
    }
    return { status, headers, body: Buffer.from(JSON.stringify(told)) };
  }
}
