/**
 * Contracts in your tests: a message that the relay would refuse fails the test of its producer.
 * See docs/contracts.md. Needs the package `ajv`.
 */
import { readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { Ajv2020, type ErrorObject, type ValidateFunction } from "ajv/dist/2020.js";

import { toJson } from "./outbox.ts";

const [FOLDER, DRAFT] = ["oncebox:///", "https://json-schema.org/draft/2020-12/schema"];
const NO_JSON = "the payload is not JSON, or nested too deeply";
const [DEPTH_MAX, TEXT_MAX, SUBJECT_MAX] = [127, 300, 255];
const TOKEN = String.raw`(?:\*|[!-)+,\-/-=?-~]+)`;
const PATTERN = new RegExp(String.raw`^(?!\$|_INBOX\.|")(?:>|${TOKEN}(?:\.${TOKEN})*(?:\.>)?)$`);
/** Regular expressions that take more than linear time, which relays refuse. */
const IRREGULAR = /\(\?<?[=!]|\\[1-9]|\\k</;
/** Parts of schemas that are data. */
const DATA = ["const", "enum", "examples", "default"];
const plural = (limit: number) => `${limit} character${limit === 1 ? "" : "s"}`;
/** The words of the relay, for a rule with this value; the others are named by their place in the schema. */
const RULES: Record<string, (value: any, error: ErrorObject) => string> = {
  type: (value) => `the value is not of type${Array.isArray(value) ? "s" : ""} ${[value].flat().map(text).join(", ")}`,
  required: (_, error) => `${text(error.params.missingProperty)} is a required property`,
  const: (value) => `${text(value)} was expected`,
  enum: (values: unknown[]) => `the value is not one of ${values.slice(0, -1).map(text).join(", ")}${values[1] === undefined ? "" : " or "}${text(values.at(-1))}`,
  pattern: (value) => `the value does not match "${value}"`,
  uniqueItems: () => "the value has non-unique elements",
  minimum: (value) => `the value is less than the minimum of ${value}`,
  maximum: (value) => `the value is greater than the maximum of ${value}`,
  exclusiveMinimum: (value) => `the value is less than or equal to the minimum of ${value}`,
  exclusiveMaximum: (value) => `the value is greater than or equal to the maximum of ${value}`,
  multipleOf: (value) => `the value is not a multiple of ${value}`,
  minLength: (value) => `the value is shorter than ${plural(value)}`,
  maxLength: (value) => `the value is longer than ${plural(value)}`,
  anyOf: () => "the value is not valid under any of the schemas listed in the 'anyOf' keyword",
};

/** All that is wrong with a file of contracts, a line each. */
export class Mistakes extends Error {}

/** A payload breaks its contract. Nothing of the payload is shown, as in the relay. */
export class Breach extends Error {
  /** The place in the payload, as a JSON Pointer; a name that the schema does not have is `*`. */
  readonly pointer: string;
  readonly reason: string;
  constructor(pointer: string, reason: string) {
    const bounded = [...reason].length > TEXT_MAX ? `${[...reason].slice(0, TEXT_MAX).join("")}...` : reason;
    super(pointer === "" ? bounded : `at ${pointer}: ${bounded}`);
    [this.pointer, this.reason] = [pointer, bounded];
  }
}

/** The contracts of a file, as `oncebox contract check` and the relay read it. */
export class Contracts {
  readonly #contracts: [pattern: string, schema: Schema][];
  private constructor(contracts: [string, Schema][]) {
    this.#contracts = contracts;
  }

  /** Reads a file, and the files beside it that its schemas refer to; rejects with `Mistakes`. */
  static async read(path: string): Promise<Contracts> {
    const [contracts, mistakes]: [[string, Schema][], string[]] = [[], []];
    const document = await readFile(path).then(parse).then((value) => fields(value, { contracts: "array" }, { title: "string", version: "string" }))
      .catch((error) => Promise.reject(new Mistakes(`${path}: ${error.message}`)));
    for (const [number, entry] of document.contracts.entries()) {
      const at = `${path}: /contracts/${number}`;
      try {
        fields(entry, { subject: "string", schema: "any" }, { consumers: "array", examples: "array" });
      } catch (error) {
        mistakes.push(`${at}: ${(error as Error).message}`);
        continue;
      }
      const subject: string = entry.subject;
      const other = contracts.find(([other]) => overlap(other, subject));
      if (!PATTERN.test(subject) || subject.length > SUBJECT_MAX) {
        mistakes.push(`${at}/subject: "${subject}" is no subject, and no pattern of subjects`);
      } else if (other) {
        mistakes.push(`${at}/subject: "${subject}" has subjects in common with "${other[0]}"; a message has one contract`);
      }
      try {
        const schema = await Schema.make(entry.schema, dirname(path));
        for (const [place, example] of (entry.examples ?? []).entries()) {
          const breach = schema.breach(example);
          if (breach) {
            mistakes.push(`${at}/examples/${place}: breaks the schema: ${breach.message}`);
          }
        }
        contracts.push([subject, schema]);
      } catch (error) {
        mistakes.push(`${at}/schema: ${(error as Error).message}`);
      }
    }
    if (mistakes.length > 0) {
      throw new Mistakes(mistakes.join("\n"));
    }
    return new Contracts(contracts);
  }

  /** Throws `Breach` for a payload, bytes or a value that has JSON, that the relay would refuse. */
  check(subject: string, payload: unknown): void {
    const schema = this.#contracts.find(([pattern]) => overlap(pattern, subject))?.[1];
    if (schema === undefined) {
      return;
    }
    let value: unknown;
    try {
      value = parse(payload instanceof Uint8Array ? payload : toJson(payload));
    } catch {
      throw new Breach("", NO_JSON);
    }
    const breach = schema.breach(value);
    if (breach) {
      throw breach;
    }
  }
}

class Schema {
  readonly #names = new Set<string>();
  #validate!: ValidateFunction;

  static async make(schema: any, folder: string): Promise<Schema> {
    const made = new Schema();
    const options = { strict: false, validateFormats: false, verbose: true, logger: false } as const;
    const ajv = new Ajv2020({ ...options, loadSchema: async (uri) => made.#prepared(await fileOf(uri, folder)) });
    const prepared = made.#prepared(schema);
    made.#validate = await ajv.compileAsync(typeof prepared === "boolean" ? prepared : { $id: `${FOLDER}.schema`, ...prepared });
    return made;
  }

  breach(value: unknown): Breach | undefined {
    if (this.#validate(value)) {
      return undefined;
    }
    // The last error but those that only name the schema in which it is.
    const error = this.#validate.errors!.findLast(({ keyword }) => keyword !== "if" && keyword !== "propertyNames")!;
    const isPastItems = error.keyword === "items" && error.params.limit !== undefined;
    const pointer = this.#shown(error.instancePath, value) + (isPastItems ? `/${error.params.limit}` : "");
    const words = error.propertyName === undefined ? RULES[error.keyword] : undefined;
    const place = error.schemaPath.replace(/^[^#]*#/, "").replace(/\/false schema$/, "");
    return new Breach(pointer, words?.(error.schema, error) ?? (place === "" ? "breaks the schema" : `breaks ${place} of the schema`));
  }

  #shown(pointer: string, value: any): string {
    return pointer.replace(/\/([^/]*)/g, (whole, escaped) => {
      const segment = escaped.replaceAll("~1", "/").replaceAll("~0", "~");
      const isKnown = Array.isArray(value) || this.#names.has(segment);
      value = value[segment];
      return isKnown ? whole : "/*";
    });
  }

  /** A schema as ajv takes it: without `nullable`, which is no keyword of the standard. */
  #prepared(schema: any): any {
    if (typeof schema !== "boolean" && (typeof schema !== "object" || schema === null || Array.isArray(schema))) {
      throw new Error("is not a JSON Schema: neither an object nor true or false");
    }
    return this.#part(schema);
  }

  #part(part: any): any {
    if (typeof part !== "object" || part === null) {
      return part;
    }
    if (Array.isArray(part)) {
      return part.map((inner) => this.#part(inner));
    }
    const draft = part.$schema;
    if (typeof draft === "string" && draft.replace(/#+$/, "") !== DRAFT) {
      throw new Error(`is written in "${draft}"; use "${DRAFT}", or leave $schema out`);
    }
    for (const pattern of [part.pattern, ...Object.keys(part.patternProperties ?? {})]) {
      if (typeof pattern === "string" && IRREGULAR.test(pattern)) {
        throw new Error(`/pattern: "${pattern}" has a look-around or a backreference`);
      }
    }
    Object.keys(part).forEach((name) => this.#names.add(name));
    const isForeign = (name: string) => name === "nullable" && (typeof part.type === "string" || Array.isArray(part.type));
    const kept = Object.entries(part).filter(([name]) => !isForeign(name));
    return Object.fromEntries(kept.map(([name, inner]) => [name, DATA.includes(name) ? inner : this.#part(inner)]));
  }
}

async function fileOf(uri: string, folder: string): Promise<unknown> {
  if (!uri.startsWith(FOLDER)) {
    throw new Error(`${uri}: a schema refers only to files in the folder of its contracts, or below`);
  }
  const parts = decodeURIComponent(uri.slice(FOLDER.length).split(/[#?]/)[0]!).split("/");
  if (parts.some((part) => ["", ".", ".."].includes(part))) {
    throw new Error(`${uri}: the file lies outside of the folder of the contracts`);
  }
  return parse(await readFile(join(folder, ...parts)));
}

/** Whether two patterns have a subject in common, or a subject is of a pattern. */
function overlap(one: string, other: string): boolean {
  const [ones, others] = [one.split("."), other.split(".")];
  for (let at = 0; at < Math.min(ones.length, others.length); at++) {
    const [a, b] = [ones[at], others[at]];
    if (a === ">" || b === ">") {
      return true;
    }
    if (a !== b && a !== "*" && b !== "*") {
      return false;
    }
  }
  return ones.length === others.length;
}

function fields(given: any, needed: Record<string, string>, others: Record<string, string>): any {
  const kind = (value: unknown) => (Array.isArray(value) ? "array" : value === null ? "null" : typeof value);
  if (kind(given) !== "object") {
    throw new Error("is no object");
  }
  for (const name of Object.keys(needed).filter((name) => !Object.hasOwn(given, name))) {
    throw new Error(`misses the field \`${name}\``);
  }
  const all: Record<string, string> = { ...needed, ...others };
  for (const [name, value] of Object.entries(given)) {
    if (!Object.hasOwn(all, name)) {
      throw new Error(`has an unknown field \`${name}\``);
    }
    if (all[name] !== "any" && all[name] !== kind(value)) {
      throw new Error(`/${name}: is of another type`);
    }
  }
  return given;
}

/** JSON as the relay reads it. */
function parse(payload: Uint8Array): any {
  const value = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(payload));
  look(value, 0);
  return value;
}

/**
 * Refuses values that JavaScript accepts: numbers out of range, half of a character, and too deep a
 * nesting.
 */
function look(value: unknown, depth: number): void {
  if (typeof value === "string" && !value.isWellFormed()) {
    throw new Error("a text has half of a character");
  } else if (typeof value === "number" && !Number.isFinite(value)) {
    throw new Error("a number is out of range");
  } else if (typeof value === "object" && value !== null) {
    if (depth === DEPTH_MAX) {
      throw new Error("it is nested too deeply");
    }
    Object.entries(value).flat().forEach((inner) => look(inner, depth + 1));
  }
}

/** As compact as the relay writes it, with names in order. */
function text(value: unknown): string {
  return JSON.stringify(value, (_, inner) =>
    typeof inner === "object" && inner !== null && !Array.isArray(inner) ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1))) : inner,
  );
}
