/** A value that tells its subscribers when it changes. */

/** @template T */
export class Signal {
  /** @type {Set<(value: T) => void>} */
  #subscribers = new Set();
  /** @type {T} */
  #value;

  /** @param {T} initial */
  constructor(initial) {
    this.#value = initial;
  }

  get value() {
    return this.#value;
  }

  set value(value) {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const subscriber of [...this.#subscribers]) subscriber(value);
  }

  /**
   * Call a function at each later change.
   * @param {(value: T) => void} subscriber
   * @returns {() => void} ends the subscription
   */
  subscribe(subscriber) {
    this.#subscribers.add(subscriber);
    return () => void this.#subscribers.delete(subscriber);
  }
}

/**
 * @template T
 * @param {T} initial
 * @returns {Signal<T>}
 */
export function signal(initial) {
  return new Signal(initial);
}
