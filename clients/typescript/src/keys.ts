/** Keys, derived as in SQL and Rust: a root and any number of levels, `root:step:#part:undo`. */

const STEP = /^[a-z0-9][a-z0-9._-]{0,63}$/;
const PART = /^#(0|[1-9][0-9]{0,9})$/;
const PART_MAX = 4294967295;

/** The root key of a client's text: 1 to 128 visible ASCII characters; ":" and "%" are escaped. */
export function rootKey(clientKey: string): string {
  const length = Buffer.byteLength(clientKey);
  if (length < 1 || length > 128) {
    throw new RangeError(`root key is ${length} bytes long; the limit is 1 to 128 bytes`);
  }
  if (!/^[!-~]+$/.test(clientKey)) {
    throw new RangeError(`root key ${JSON.stringify(clientKey)} has a character outside visible ASCII`);
  }
  return bounded(clientKey.replaceAll("%", "%25").replaceAll(":", "%3A"));
}

/** The key of a step: `key:step`. */
export function stepKey(key: string, step: string): string {
  if (!STEP.test(step) || step === "undo" || step.startsWith("oncebox-")) {
    throw new RangeError(`step ${JSON.stringify(step)} does not match [a-z0-9][a-z0-9._-]{0,63}, or is "undo" or "oncebox-..."`);
  }
  return bounded(`${checkKey(key)}:${step}`);
}

/** The key of one of several messages that a step sends: `key:#part`. */
export function partKey(key: string, part: number): string {
  if (!Number.isInteger(part) || part < 0 || part > PART_MAX) {
    throw new RangeError(`part ${part} is not 0 to ${PART_MAX}`);
  }
  return bounded(`${checkKey(key)}:#${part}`);
}

/** The key of the compensation: `key:undo`. */
export function undoKey(key: string): string {
  if (checkKey(key).endsWith(":undo")) {
    throw new RangeError(`key ${JSON.stringify(key)} is an undo already`);
  }
  return bounded(`${key}:undo`);
}

/** The key itself, if it is valid; else a RangeError is thrown. */
export function checkKey(key: string): string {
  bounded(key);
  const [root = "", ...levels] = key.split(":");
  const isRoot = rootKey(root.replaceAll("%3A", ":").replaceAll("%25", "%")) === root;
  const isLevel = (level: string, n: number) =>
    (STEP.test(level) || (PART.test(level) && Number(level.slice(1)) <= PART_MAX)) &&
    !(level === "undo" && levels[n - 1] === "undo");
  if (!isRoot || !levels.every(isLevel)) {
    throw new RangeError(
      `key ${JSON.stringify(key)} is not ROOT or ROOT:STEP...: write ":" and "%" of the root as %3A and %25`,
    );
  }
  return key;
}

function bounded(key: string): string {
  const length = Buffer.byteLength(key);
  if (length < 1 || length > 255) {
    throw new RangeError(`key is ${length} bytes long; the limit is 1 to 255 bytes`);
  }
  return key;
}
