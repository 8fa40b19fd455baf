package oncebox;

import java.util.ArrayList;
import java.util.List;

/** The answers of the HTTP layer itself, application/problem+json: those of all languages. */
enum Problem {
    KEY_MISSING(400, "This request needs an idempotency key", "Send a new key, such as a UUID, with every new request, and"
            + " the same key with every repetition of it."),
    KEY_MALFORMED(400, "The idempotency key cannot be read", "The key is one string of 1 to 128 visible ASCII characters"
            + " without blanks, in double quotes or bare; given once."),
    TENANT_MISSING(403, "The request belongs to nobody", "The server could not tell for whom the request is made."),
    METHOD_UNKNOWN(501, "The method is not known here", "Nothing was done."),
    KEY_REUSED(422, "The idempotency key was used for another request", "Send what you sent first, if this one repeats it."
            + " Use a new key only for a new request."),
    IN_FLIGHT(409, "A request with this idempotency key is being worked on", "Send it again with the same key."),
    BODY_TOO_LARGE(413, "The request's body is too large", "Nothing was done."),
    BODY_UNREADABLE(400, "The request's body ended too early", "Nothing was done. Send it again with the same key."),
    RESPONSE_NOT_KEPT(410, "The request was done, but its response is gone", "Its body was too large to keep. It was not done"
            + " a second time, and need not be."),
    RESPONSE_UNKNOWN(410, "A part of the request may be done", "The first request with this key failed after a part of it was"
            + " committed. It was not done a second time."),
    UNAVAILABLE(503, "The database is not available", "Whether the request was done is not known. Send it again with the same key."),
    TOO_SLOW(503, "The request took too long", "It has no outcome. Send it again with the same key."),
    FAILED(500, "The request failed", "It has no outcome. Send it again with the same key.");

    final int status;
    private final String title;
    private final String detail;

    /** Thrown where a request is refused. */
    static final class Refused extends Exception {
        private static final long serialVersionUID = 1;
        final Problem problem;

        Refused(Problem problem, Throwable cause) {
            super(problem.title, cause);
            this.problem = problem;
        }
    }

    Problem(int status, String title, String detail) {
        this.status = status;
        this.title = title;
        this.detail = detail;
    }

    Refused refused() {
        return new Refused(this, null);
    }

    Refused because(Throwable cause) {
        return new Refused(this, cause);
    }

    /** @param firstStatus of the response that is not kept; 0 if there is none */
    IdempotencyFilter.Response response(int firstStatus) {
        String name = (this == RESPONSE_UNKNOWN ? RESPONSE_NOT_KEPT : this).name().toLowerCase(java.util.Locale.ROOT).replace('_', '-');
        String first = firstStatus == 0 ? "" : ", \"first_status\": " + firstStatus;
        String body = "{\"type\": \"urn:oncebox:problem:" + name + "\", \"title\": \"" + title + "\", \"status\": " + status
                + ", \"detail\": \"" + detail + "\"" + first + "}";
        List<String[]> headers = new ArrayList<>();
        headers.add(new String[] {"content-type", "application/problem+json"});
        if (status == 409 || status == 503) {
            headers.add(new String[] {"retry-after", "1"});
        }
        return new IdempotencyFilter.Response(status, headers, body.getBytes(java.nio.charset.StandardCharsets.UTF_8), false);
    }
}
