/** Which message is next: those of one ordering key one at a time, in the order they came. No I/O. */

/** A message that this process holds. */
export interface Held<M> {
  /** Tells it from all others; a copy has the same. */
  readonly id: string;
  readonly orderingKey: string | undefined;
  readonly message: M;
  /** `resting` until its next attempt; `behind` an earlier one of its ordering key. */
  state: "behind" | "ready" | "running" | "resting";
}

/** The messages that this process holds. Bounded by the caller, which pulls no more than there is room for. */
export class Queue<M> {
  readonly #held = new Map<string, Held<M>>();
  /** All of an ordering key; the first one is ready, running or resting. */
  readonly #byKey = new Map<string, Held<M>[]>();
  readonly #resting = new Map<Held<M>, NodeJS.Timeout>();
  readonly #changed: () => void;
  #ready: Held<M>[] = [];

  /** `changed` is called when a message becomes ready by itself. */
  constructor(changed: () => void) {
    this.#changed = changed;
  }

  get size(): number {
    return this.#held.size;
  }

  has(id: string): boolean {
    return this.#held.has(id);
  }

  get ready(): number {
    return this.#ready.length;
  }

  all(): Held<M>[] {
    return [...this.#held.values()];
  }

  /** Adds a message; false for a copy of one that is held. */
  push(id: string, orderingKey: string | undefined, message: M): boolean {
    if (this.#held.has(id)) {
      return false;
    }
    const held: Held<M> = { id, orderingKey, message, state: "ready" };
    this.#held.set(id, held);
    if (orderingKey !== undefined) {
      const same = this.#byKey.get(orderingKey) ?? [];
      held.state = same.length > 0 ? "behind" : "ready";
      same.push(held);
      this.#byKey.set(orderingKey, same);
    }
    if (held.state === "ready") {
      this.#ready.push(held);
    }
    return true;
  }

  /** Up to `count` messages to work on, each of another ordering key. */
  take(count: number): Held<M>[] {
    const taken = this.#ready.splice(0, count);
    taken.forEach((held) => (held.state = "running"));
    return taken;
  }

  /** The message has ended; the next one of its ordering key is ready. */
  remove(held: Held<M>): void {
    this.#held.delete(held.id);
    clearTimeout(this.#resting.get(held));
    this.#resting.delete(held);
    const same = held.orderingKey === undefined ? [] : this.#byKey.get(held.orderingKey) ?? [];
    const rest = same.filter((other) => other !== held);
    if (held.orderingKey !== undefined) {
      rest.length > 0 ? this.#byKey.set(held.orderingKey, rest) : this.#byKey.delete(held.orderingKey);
    }
    if (rest[0]?.state === "behind") {
      rest[0].state = "ready";
      this.#ready.push(rest[0]);
    }
  }

  /** The message is ready again after `ms`. It keeps its place: later ones of its ordering key wait. */
  rest(held: Held<M>, ms: number): void {
    held.state = "resting";
    const wake = () => {
      this.#resting.delete(held);
      held.state = "ready";
      this.#ready.push(held);
      this.#changed();
    };
    this.#resting.set(held, setTimeout(wake, ms));
  }

  /** Takes out all that are not running, in the order they came. */
  drainIdle(): Held<M>[] {
    const idle = this.all().filter(({ state }) => state !== "running");
    // Nothing becomes ready meanwhile.
    idle.reverse().forEach((held) => this.remove(held));
    this.#ready = [];
    return idle.reverse();
  }
}
