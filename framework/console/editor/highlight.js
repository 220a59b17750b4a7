/** Colours of YAML and Jinja: splits a text into the lines of tokens that the page shows below the text field. */

/** @typedef {[kind: string, text: string]} Token kind: a class such as `ck` (key), or "" */

/** @param {string} flags @param {Record<string, string>} kinds @returns {RegExp} the first kind that fits is meant */
const pattern = (flags, kinds) =>
  new RegExp(Object.entries(kinds).map(([kind, source]) => `(?<${kind}>${source})`).join("|"), flags);

const END = "$(?![\\s\\S])";
const YAML = pattern("gm", {
  cc: "(?:^|(?<=\\s))#.*",
  ck: "(?:\"[^\"\\n]*\"|'[^'\\n]*'|[\\w.*/$-][\\w.*/$ -]*?)(?=\\s*:(?:\\s|$))",
  cs: "(?<!\\w)(?:\"(?:[^\"\\\\\\n]|\\\\.)*\"?|'[^'\\n]*'?)",
  cp: "[{}[\\],:|>]|^\\s*-(?=\\s)",
  cn: "(?<![\\w.-])(?:-?\\d[\\d_.]*(?:ms|[smhd])?|true|false|null)(?![\\w.-])",
});
const JINJA = pattern("g", {
  cc: `\\{#[\\s\\S]*?(?:#\\}|${END})`,
  cj: `\\{\\{[\\s\\S]*?(?:\\}\\}|${END})|\\{%[\\s\\S]*?(?:%\\}|${END})`,
});
const WORDS =
  "if|elif|else|endif|for|in|endfor|set|include|import|from|extends|block|endblock|macro|endmacro|is|not|and|or";
const INSIDE = pattern("g", {
  cs: "\"[^\"]*\"?|'[^']*'?",
  cn: "\\b\\d+(?:\\.\\d+)?\\b",
  ck: `\\b(?:${WORDS})\\b`,
  cp: "\\{\\{-?|-?\\}\\}|\\{%-?|-?%\\}|[|.(),]",
});
const TEXT_BLOCK = /[|>][+-]?\d?\s*(?:#.*)?$/;

/**
 * Return the tokens of each line. Joined, they are the text.
 * @param {string} text
 * @param {string} path its name decides the language
 * @returns {Token[][]}
 */
export function highlight(text, path) {
  const tokens = path.endsWith(".j2") ? template(text) : yaml(text);
  /** @type {Token[][]} */
  const lines = [[]];
  for (const [kind, value] of tokens) {
    value.split("\n").forEach((part, i) => {
      if (i) lines.push([]);
      if (part) lines[lines.length - 1].push([kind, part]);
    });
  }
  return lines;
}

/** @param {string} text @returns {Token[]} */
function yaml(text) {
  let block = -1;
  return text.split(/(?<=\n)/).flatMap((line) => {
    const indent = line.search(/\S/);
    if (block >= 0 && (indent < 0 || indent > block)) return /** @type {Token[]} */ ([["cs", line]]);
    block = TEXT_BLOCK.test(line.trimEnd()) && /:\s|-\s/.test(line) ? indent : -1;
    return split(line, YAML);
  });
}

/** @param {string} text @returns {Token[]} */
function template(text) {
  return split(text, JINJA).flatMap(([kind, part]) => (kind === "cj" ? split(part, INSIDE) : [[kind, part]]));
}

/** @param {string} text @param {RegExp} kinds @returns {Token[]} */
function split(text, kinds) {
  /** @type {Token[]} */
  const tokens = [];
  let end = 0;
  for (const match of text.matchAll(kinds)) {
    if (match.index > end) tokens.push(["", text.slice(end, match.index)]);
    const kind = Object.entries(match.groups ?? {}).find(([, value]) => value !== undefined)?.[0] ?? "";
    if (match[0]) tokens.push([kind, match[0]]);
    end = match.index + match[0].length;
  }
  if (end < text.length) tokens.push(["", text.slice(end)]);
  return tokens;
}
