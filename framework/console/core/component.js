/** The base of the custom elements: what an element starts ends when it leaves the page. */

import { h } from "./dom.js";
import { t } from "./i18n.js";

export class Component extends HTMLElement {
  #leaves = new AbortController();

  /** Aborted when the element leaves the page. */
  get stopped() {
    return this.#leaves.signal;
  }

  connectedCallback() {
    this.#leaves = new AbortController();
    this.start();
  }

  disconnectedCallback() {
    this.#leaves.abort();
  }

  /** Build the element. Called each time it is added to the page. */
  start() {}

  /**
   * Call a function now, and at each change of a signal.
   * @template T
   * @param {import("./signal.js").Signal<T>} source
   * @param {(value: T) => void} fn
   */
  watch(source, fn) {
    this.stopped.addEventListener("abort", source.subscribe(fn), { once: true });
    fn(source.value);
  }

  /**
   * Listen to events of another object.
   * @param {EventTarget} target
   * @param {string} type
   * @param {(event: any) => void} fn
   */
  on(target, type, fn) {
    target.addEventListener(type, fn, { signal: this.stopped });
  }

  /**
   * Call a function periodically while the page is visible, and when it becomes visible again.
   * @param {number} ms
   * @param {() => void} fn
   */
  every(ms, fn) {
    const timer = setInterval(() => document.hidden || fn(), ms);
    this.stopped.addEventListener("abort", () => clearInterval(timer), { once: true });
    this.on(document, "visibilitychange", () => document.hidden || fn());
  }

  /**
   * Return a function that calls `fn` once in the next frame, however often it is called until then.
   * @param {() => void} fn
   */
  frame(fn) {
    let waits = false;
    return () => {
      if (waits) return;
      waits = true;
      requestAnimationFrame(() => {
        waits = false;
        if (!this.stopped.aborted) fn();
      });
    };
  }

  /**
   * Pass a result on if the element is still on the page. A failure takes the place of the element's content, with a
   * button that builds the element again.
   * @template T
   * @param {Promise<T>} promise
   * @param {(result: T) => void} done
   * @param {(error: Error) => void} [failed]
   * @param {Element} [box] what the result fills: while it is empty, it says that it loads
   */
  async load(promise, done, failed = (error) => this.fail(error), box = this) {
    const stopped = this.stopped;
    const note = box.childElementCount ? null : waitNote();
    if (note) box.append(note);
    this.classList.add("loading");
    try {
      const result = await promise;
      note?.remove();
      if (!stopped.aborted) done(result);
    } catch (error) {
      note?.remove();
      if (!stopped.aborted) failed(/** @type {Error} */ (error));
    } finally {
      this.classList.remove("loading");
    }
  }

  /** Say what failed, in place of the element's content. @param {Error} error */
  fail(error) {
    const again = () => {
      this.disconnectedCallback();
      this.replaceChildren();
      this.connectedCallback();
    };
    this.replaceChildren(failureNote(error, again));
  }
}

/** Return a note that says that something loads. */
export const waitNote = () => h("p.wait", { role: "status" }, h("i.spin"), t("Loading"));

/**
 * Return a note that says what failed.
 * @param {Error & {code?: string}} error
 * @param {() => void} [again] what to do again, if that may help
 */
export function failureNote(error, again) {
  const code = error.code ? h("code.dim", error.code) : null;
  const text = h("p", h("b", t("This could not be loaded.")), " ", error.message);
  const retry = again && h("button.btn.sm", { onclick: again }, t("Try again"));
  return h("div.note.k-danger", { role: "alert" }, text, code, retry);
}

/**
 * Register a custom element, once.
 * @param {string} name
 * @param {CustomElementConstructor} element
 */
export function define(name, element) {
  if (!customElements.get(name)) customElements.define(name, element);
}
