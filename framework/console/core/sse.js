/** Reads server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) from a response. */

/** @typedef {{id: string | null, event: string, data: string}} ServerEvent */

export class EventParser {
  #rest = "";
  /** @type {string | null} */
  #id = null;
  #event = "";
  /** @type {string[]} */
  #data = [];

  /**
   * Return the events that a piece of text completes.
   * @param {string} text
   * @returns {ServerEvent[]}
   */
  push(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.#line(line));
  }

  /**
   * @param {string} line
   * @returns {ServerEvent[]}
   */
  #line(line) {
    if (line === "") return this.#dispatch();
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#event = value;
    else if (field === "id") this.#id = value;
    return [];
  }

  #dispatch() {
    const event = { id: this.#id, event: this.#event || "message", data: this.#data.join("\n") };
    const found = this.#data.length ? [event] : [];
    this.#id = null;
    this.#event = "";
    this.#data = [];
    return found;
  }
}
