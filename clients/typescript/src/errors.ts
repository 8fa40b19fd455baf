/** Errors, which libraries wrap in errors of theirs: their texts, and their meaning for a run. */

import { KIND } from "./message.ts";

/** The word of a handler, also when a library has wrapped it. */
export function found<E>(error: unknown, kind: "Dead" | "Reject" | "RetryAfter" | "Snooze" | "Rejected" | "NotSent" | "LeaseLost" | "OutcomeUnknown" | "Unavailable"): E | undefined {
  // An error of a provider's client decides nothing.
  return causes(error, (one) => isKind(one, "OutcomeUnknown")).find((one) => isKind(one, kind)) as E | undefined;
}

export function isKind(value: unknown, kind: string): boolean {
  return (value as { [KIND]?: unknown } | null | undefined)?.[KIND] === kind;
}

/** An error, its causes, and the errors of a group; at most twenty. */
function causes(error: unknown, isLast: (one: unknown) => boolean = () => false): unknown[] {
  const all = new Set([error]);
  // Errors that the loop adds are visited, too.
  for (const one of all) {
    if (isLast(one)) {
      continue;
    }
    try {
      // The last three are those of TypeORM and Prisma.
      const { cause, errors, driverError, originalError, meta } = (one ?? {}) as Record<string, any>;
      const within = [cause, ...(Array.isArray(errors) ? errors : []), driverError, originalError, meta?.driverAdapterError];
      within.filter((other) => typeof other === "object" && other !== null && all.size < 20).forEach((other) => all.add(other));
    } catch {
      // It cannot say why.
    }
  }
  return [...all];
}

/** The SQLSTATEs of an error, which may be anything that a handler throws. */
function sqlStates(error: unknown): string[] {
  return causes(error).flatMap((one) => {
    try {
      // Prisma has its own code of a lost race.
      const { code, originalCode } = (one ?? {}) as { code?: unknown; originalCode?: unknown };
      return [code === "P2034" ? "40001" : code, originalCode].filter((state) => typeof state === "string");
    } catch {
      return [];
    }
  });
}

export function hasState(error: unknown, pattern: RegExp): boolean {
  return sqlStates(error).some((state) => pattern.test(state));
}

/** A race was lost against another transaction: run it again at once. */
export function isConflict(error: unknown): boolean {
  return hasState(error, /^40(001|P01)$/);
}

/** The server shuts down, only reads, or is gone: the connection is of no use. */
export function isUseless(error: unknown): boolean {
  return hasState(error, /^(25006|57P0[1-3]|08...)$/);
}

/** Whether PostgreSQL has answered with this error, and the transaction has not committed. */
export function isOfPostgres(error: unknown): boolean {
  return typeof (error as { severity?: unknown } | null)?.severity === "string";
}

/** PostgreSQL could not be asked: the connection was dead, the server is another one now, or has no room. */
export function isAway(error: unknown): boolean {
  return isUseless(error) || hasState(error, /^53/) || !isOfPostgres(error);
}

/** An error and its causes in a line, as it is stored. Of an error of validation the fields, and no text, which may quote the payload. */
export function line(error: unknown): string {
  return [...new Set(causes(error).filter((one, n) => n === 0 || one instanceof Error).map(single))].slice(0, 4).join("; caused by ");
}

/** Where it comes from, for the log: the stacks of the error and its causes. */
export function stacks(error: unknown): string {
  const frames = (one: unknown) => {
    try {
      const stack = String((one as { stack?: unknown } | null)?.stack ?? "");
      return `${single(one)}\n${stack.split("\n").filter((text) => /^\s+at /.test(text)).slice(0, 12).join("\n")}`;
    } catch {
      return single(one);
    }
  };
  return causes(error).filter((one) => one instanceof Error).slice(0, 4).map(frames).join("\ncaused by ");
}

/** An error of a start, with its remedy where it is known. */
export function remedied(error: unknown): unknown {
  if (hasState(error, /^(3F000|42883|42P01)$/)) {
    return Object.assign(new Error(`${line(error)}: the tables are missing or older than this client; run \`oncebox migrate\``, { cause: error }), { code: "3F000" });
  }
  return error;
}

function single(error: unknown): string {
  try {
    const { name, message } = error instanceof Error ? error : { name: typeof error, message: String(error) };
    const said = fields(error) || message || (error as { code?: string }).code;
    // Prisma begins with an empty line, and has the cause at the end.
    const text = String(said ?? "");
    const lines = text.trim().split("\n");
    return text === "" ? name : `${name}: ${text.startsWith("\n") ? lines.at(-1) : lines[0]}`;
  } catch {
    return `${typeof error}: its text cannot be read`;
  }
}

/** The fields that an error of validation names, as Zod, Valibot, ArkType and Ajv have them: "at lines.0.cents: too_small". */
export function fields(error: unknown): string {
  const { issues, errors } = (error ?? {}) as { issues?: unknown; errors?: unknown };
  const list = Array.isArray(issues) ? issues : Array.isArray(errors) && !(errors[0] instanceof Error) ? errors : [];
  const named = list.slice(0, 3).map((issue: Record<string, any>) => {
    const path = Array.isArray(issue.path) ? issue.path.map((part: any) => part?.key ?? part).join(".") : String(issue.instancePath ?? "").slice(1).replaceAll("/", ".");
    return `at ${path || "the top"}: ${issue.code ?? issue.keyword ?? issue.type ?? "invalid"}`;
  });
  return named.join(", ");
}
