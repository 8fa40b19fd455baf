/** The client accepts, refuses and derives keys as the shared vectors say; VECTORS is the path of their file. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { checkKey, partKey, rootKey, stepKey, undoKey } from "oncebox";

test("keys are judged and derived as the vectors say", () => {
  let judged = 0;
  const vectors = readFileSync(process.env.VECTORS ?? "../../schema/vectors/keys.tsv", "utf8");
  for (const line of vectors.trimEnd().split("\n").filter((line) => !line.startsWith("#"))) {
    const [verdict = "", ...rest] = line.split("\t");
    const key = rest.join("\t").replace(/\{([^{}]+)\*(\d+)\}/g, (_, unit: string, count: string) => unit.repeat(Number(count)));
    const judge = verdict === "bad" ? assert.throws : assert.doesNotThrow;
    judge(() => checkKey(key), line);
    judged += 1;
  }
  assert.ok(judged > 50, `${judged}`);

  assert.equal(undoKey(partKey(stepKey(rootKey("a:b%"), "pay"), 3)), "a%3Ab%25:pay:#3:undo");
  assert.equal(partKey("a", 4294967295), "a:#4294967295");
  assert.ok(rootKey("x".repeat(128)));
  for (const derive of [
    () => rootKey(""),
    () => rootKey("x".repeat(129)),
    () => rootKey("a b"),
    () => stepKey("a", "Pay"),
    () => stepKey("a", "undo"),
    () => stepKey("a", "oncebox-edit-1"),
    () => stepKey("a", "s".repeat(65)),
    () => stepKey("a b", "pay"),
    () => partKey("a", -1),
    () => partKey("a", 4294967296),
    () => undoKey("a:undo"),
  ]) {
    assert.throws(derive, RangeError);
  }
});
