/** Where things are in a YAML text that may be half-written: pure functions on block and flow style. */

/**
 * A value of a mapping or list. `path` has keys, and "*" for items of lists.
 * @typedef {object} Entry
 * @property {string[]} path
 * @property {number} start where its key or item begins
 * @property {number} value where its value begins
 * @property {number} end where its value ends
 * @property {number} indent column of its key or item
 * @property {"flow" | "block" | "scalar"} kind
 * @property {boolean} inFlow whether it is written inside of brackets
 */
/** @typedef {{path: string[], at: "key" | "value", from: number}} Cursor at "key": a key or an item of a list */
/** @typedef {{bracket: string, path: string[], key: Entry | null, item: number}} Level */

const KEY = /^("[^"]*"|'[^']*'|[^\s#"'{}[\],-][^#{}[\],]*?|-[^\s#{}[\],]+?)\s*:(?=\s|$)/;
const ITEM = /^-(\s+|$)/;
/** Inside of brackets: space, comment, texts in quotes, punctuation, plain text. */
const FLOW = [
  /\s+|#[^\n]*|"(?:[^"\\]|\\.)*"?|'(?:[^']|'')*'?|[{}[\],]|:(?=[\s,}\]]|$)/,
  /(?:[^\s{}[\],:#]|:(?![\s,}\]]|$)|(?<=\S)#| +(?=[^\s{}[\],:#]))+/,
].map(({ source }) => source).join("|");

/**
 * Return all values of a text, and what is being written at its end.
 * @param {string} text
 * @returns {{entries: Entry[], cursor: Cursor}}
 */
export function scan(text) {
  const scanner = new Scanner(text);
  scanner.run();
  return { entries: scanner.entries, cursor: scanner.cursor };
}

/**
 * Return what is being written at an offset.
 * @param {string} text
 * @param {number} offset
 */
export const cursorAt = (text, offset) => scan(text.slice(0, offset)).cursor;

/**
 * Return the value at a path without lists.
 * @param {string} text
 * @param {readonly string[]} path
 */
export function find(text, path) {
  const name = path.join("\n");
  return scan(text).entries.find((entry) => entry.path.join("\n") === name) ?? null;
}

/**
 * Return the values directly below a path.
 * @param {string} text
 * @param {readonly string[]} path
 */
export function childrenOf(text, path) {
  const isBelow = (/** @type {Entry} */ { path: own }) => path.every((key, i) => key === own[i]);
  return scan(text).entries.filter((entry) => entry.path.length === path.length + 1 && isBelow(entry));
}

/** @param {string} word as it is written @returns {string} its value, if it is a text */
export function unquote(word) {
  if (/^'.*'$/s.test(word)) return word.slice(1, -1).replaceAll("''", "'");
  if (!/^".*"$/s.test(word)) return word;
  try {
    return JSON.parse(word);
  } catch {
    return word.slice(1, -1);
  }
}

class Scanner {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
    /** @type {Entry[]} */
    this.entries = [];
    /** @type {Entry[]} */
    this.open = [];
    /** @type {Cursor} */
    this.cursor = { path: [], at: "key", from: 0 };
    this.at = 0;
    this.lastEnd = 0;
  }

  run() {
    while (this.at <= this.text.length) {
      const line = this.#line();
      const indent = /** @type {RegExpExecArray} */ (/^ */.exec(line))[0].length;
      if (line.trim() && line[indent] !== "#" && !/^(---|\.\.\.)/.test(line)) this.#content(indent);
      else if (this.at + line.length >= this.text.length) this.#blank(indent);
      this.at = this.#next();
    }
    this.#close(-1);
  }

  #line() {
    const end = this.text.indexOf("\n", this.at);
    return this.text.slice(this.at, end < 0 ? undefined : end);
  }

  #next() {
    const end = this.text.indexOf("\n", this.at);
    return end < 0 ? this.text.length + 1 : end + 1;
  }

  /** An empty last line: a key, as deep as it is indented. @param {number} indent */
  #blank(indent) {
    const parents = this.open.filter((entry) => entry.indent < indent);
    this.cursor = { path: parents.at(-1)?.path ?? [], at: "key", from: this.text.length };
  }

  /** @param {number} column */
  #content(column) {
    let rest = this.#line().slice(column);
    for (let item = ITEM.exec(rest); item; item = ITEM.exec(rest)) {
      this.#close(column, true);
      this.#push([...this.#path(), "*"], this.at + column, this.at + column + item[0].length, column);
      column += item[0].length;
      rest = rest.slice(item[0].length);
    }
    this.#close(column);
    const key = KEY.exec(rest);
    if (!key) return this.#value(this.at + column, rest);
    const after = key[0].length + (/^\s*/.exec(rest.slice(key[0].length))?.[0].length ?? 0);
    this.#push([...this.#path(), unquote(key[1])], this.at + column, this.at + column + after, column);
    this.#value(this.at + column + after, rest.slice(after), true);
  }

  /** @param {number} at @param {string} rest of the line @param {boolean} [isKeyed] */
  #value(at, rest, isKeyed = false) {
    const entry = this.open.at(-1);
    const path = entry?.path ?? [];
    this.cursor = { path, at: isKeyed ? "value" : "key", from: at };
    if (/^[{[]/.test(rest)) {
      const end = this.#flow(at, path);
      if (entry) Object.assign(entry, { kind: "flow", end });
      this.at = this.lastEnd = end;
    } else {
      const bare = rest.replace(/^("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')/, (quoted) => "x".repeat(quoted.length));
      const end = at + rest.slice(0, /(^|\s)#/.exec(bare)?.index).trimEnd().length;
      if (entry && end > at) Object.assign(entry, { kind: "scalar", end });
      this.lastEnd = end;
      if (entry && /^[|>]/.test(rest)) this.#skipText(entry);
    }
  }

  /** Skip the lines of a text in block style. @param {Entry} entry */
  #skipText(entry) {
    for (let next = this.#next(); next <= this.text.length; next = this.#next()) {
      const before = this.at;
      this.at = next;
      const line = this.#line();
      if (line.trim() && (/^ */.exec(line)?.[0].length ?? 0) <= entry.indent) {
        this.at = before;
        return;
      }
      if (line.trim()) entry.end = this.lastEnd = next + line.length;
      if (next + line.length >= this.text.length) this.cursor = { path: [], at: "value", from: this.text.length };
    }
  }

  /** @param {string[]} path @param {number} start @param {number} value @param {number} indent */
  #push(path, start, value, indent) {
    /** @type {Entry} */
    const entry = { path, start, value, end: value, indent, kind: "block", inFlow: false };
    this.entries.push(entry);
    this.open.push(entry);
  }

  #path() {
    return this.open.at(-1)?.path ?? [];
  }

  /**
   * End the values that a line at this column does not belong to.
   * @param {number} column
   * @param {boolean} [isItem]
   */
  #close(column, isItem = false) {
    for (let last = this.open.at(-1); last; last = this.open.at(-1)) {
      // Items of a list may be at the column of the list's key.
      if (last.indent < column || (isItem && last.indent === column && last.path.at(-1) !== "*")) return;
      if (last.kind === "block") last.end = Math.max(last.value, this.lastEnd);
      this.open.pop();
    }
  }

  /** @param {number} at @param {string[]} path @returns {number} where the brackets are closed, or the end */
  #flow(at, path) {
    /** @type {Level[]} */
    const levels = [];
    const token = new RegExp(FLOW, "gy");
    token.lastIndex = at;
    for (let match = token.exec(this.text); match; match = token.exec(this.text)) {
      const [word] = match;
      if (/^[{[]$/.test(word)) this.#enter(levels, word, path, match.index);
      else if (/^[}\]]$/.test(word)) {
        levels.pop();
        const parent = levels.at(-1);
        if (!parent) return token.lastIndex;
        finish(parent, token.lastIndex, "flow");
      } else this.#inside(/** @type {Level} */ (levels.at(-1)), word, match.index);
      this.#flowCursor(levels, match.index, word);
    }
    return this.text.length;
  }

  /** @param {Level[]} levels @param {string} bracket @param {string[]} path @param {number} at */
  #enter(levels, bracket, path, at) {
    const parent = levels.at(-1);
    if (parent?.bracket === "[") this.#add(parent, at, "*");
    else if (parent?.key) parent.key.value = at;
    levels.push({ bracket, path: parent?.key?.path ?? path, key: null, item: 0 });
  }

  /** @param {Level} level @param {string} word @param {number} at */
  #inside(level, word, at) {
    if (!word.trim() || word[0] === "#") return;
    if (word === ",") level.key = null;
    else if (word === ":") level.item = 1;
    else if (level.bracket === "[") {
      this.#add(level, at, "*");
      finish(level, at + word.length, "scalar");
    } else if (!level.key) {
      this.#add(level, at, unquote(word));
      level.item = 0;
      Object.assign(level.key ?? {}, { value: at + word.length, end: at + word.length });
    } else {
      if (level.key.kind === "block") level.key.value = at;
      finish(level, at + word.length, "scalar");
    }
  }

  /** @param {Level} level @param {number} at @param {string} name */
  #add(level, at, name) {
    const path = [...level.path, name];
    /** @type {Entry} */
    const entry = { path, start: at, value: at, end: at, indent: 0, kind: "block", inFlow: true };
    level.key = entry;
    this.entries.push(entry);
  }

  /** @param {Level[]} levels @param {number} at @param {string} word */
  #flowCursor(levels, at, word) {
    const level = levels.at(-1);
    if (!level) return;
    const from = /^[\s{}[\],:]/.test(word) ? at + word.length : at;
    const isValue = level.bracket === "{" && level.key && (level.item || word === ":");
    const path = level.bracket === "[" ? [...level.path, "*"] : isValue ? level.key?.path : level.path;
    this.cursor = { path: path ?? [], at: isValue || level.bracket === "[" ? "value" : "key", from };
  }
}

/** @param {Level} level @param {number} end @param {"flow" | "scalar"} kind */
function finish(level, end, kind) {
  if (level.key) Object.assign(level.key, { end, kind });
}
