/** Headers as all consumers read them: names compare without case, and blanks around values do not count. */

/** Names in lower case; the different values of one name are the lines of its text. */
export function collected(pairs: Iterable<readonly [string, string[]]>): Record<string, string> {
  const values = new Map<string, Set<string>>();
  for (const [name, several] of pairs) {
    const same = values.get(name.toLowerCase()) ?? new Set();
    several.forEach((value) => same.add(trimmed(value)));
    values.set(name.toLowerCase(), same);
  }
  return Object.fromEntries([...values].map(([name, same]) => [name, [...same].join("\n")]));
}

/** The value of a header; throws if it has several different ones. */
export function single(headers: Record<string, string>, name: string): string | undefined {
  const same = Object.entries(headers).filter(([other]) => other.toLowerCase() === name.toLowerCase());
  const values = new Set(same.flatMap(([, lines]) => lines.split("\n").map(trimmed)));
  if (values.size > 1) {
    throw new RangeError(`header ${name} has several different values`);
  }
  return [...values][0];
}

function trimmed(value: string): string {
  return value.replace(/^[ \t]+|[ \t]+$/g, "");
}
