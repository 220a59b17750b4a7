/**
 * Joins and minifies the console: `node build.mjs MODULES OUT`, where MODULES has what package.json names.
 *
 * A script for `main.js` and for each page, one for the modules that several of them share, and one for each library
 * that is loaded later.
 */

import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, relative, resolve, sep } from "node:path";
import { fileURLToPath } from "node:url";

const CONSOLE = dirname(fileURLToPath(import.meta.url));
const [modules, out] = process.argv.slice(2).map((path) => resolve(path));
const { build } = createRequire(join(modules, "esbuild/"))("esbuild");
const NOTICE = "/*! Licenses of the libraries in these scripts: licenses.txt */";

const pages = readdirSync(CONSOLE, { recursive: true }).filter((name) => /^[^/]+\/page\.js$/.test(name));
const screens = ["main.js", ...pages].map((name) => join(CONSOLE, name));
const entryPoints = [...screens, ...["zh/index.js", "libraries/code-field.js", "libraries/colours.js"].map((name) => join(CONSOLE, name))];

const options = {
  bundle: true,
  format: "esm",
  legalComments: "eof",
  logLevel: "warning",
  logOverride: { "import-is-undefined": "error" },
  metafile: true,
  minify: true,
  nodePaths: [modules],
  outbase: CONSOLE,
  outdir: out,
  splitting: true,
  target: "es2023",
  tsconfigRaw: "{}", // the paths of jsconfig.json lead to other files of a package than its exports
};

/**
 * @param {string[]} [first] modules that each script imports: as all share them, they become one script
 * @param {string[]} [scripts] the first module of each script
 */
const plugins = (first = [], scripts = []) => [{
  name: "console",
  setup: ({ onLoad, onResolve }) => {
    onResolve({ filter: /\/libraries\.js$/ }, () => ({ path: join(CONSOLE, "libraries/npm.js") }));
    onLoad({ filter: /\.js$/ }, ({ path }) => {
      if (!scripts.includes(path)) return null;
      const imports = first.map((name) => `import ${JSON.stringify(name)};`);
      return { contents: `${imports.join("")}${readFileSync(path, "utf8")}` };
    });
  },
}];

/** @returns {string[]} the modules that more than one page needs */
function shared({ inputs }) {
  const uses = new Map();
  for (const screen of screens) {
    const waiting = [relative(process.cwd(), screen).split(sep).join("/")];
    const found = new Set();
    for (let name = waiting.pop(); name; name = waiting.pop()) {
      if (found.has(name)) continue;
      found.add(name);
      const needed = inputs[name].imports.filter(({ kind, external }) => kind === "import-statement" && !external);
      waiting.push(...needed.map(({ path }) => path));
    }
    for (const name of found) uses.set(name, (uses.get(name) ?? 0) + 1);
  }
  return [...uses].filter(([, count]) => count > 1).map(([name]) => resolve(name)).sort();
}

/** @param {string[]} names of modules @returns {string} the licenses of the packages that they are from */
function licenses(names) {
  const packages = names.map((name) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(name)?.[1]).filter(Boolean);
  const texts = [...new Set(packages)].sort().map((name) => {
    const folder = join(modules, name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
    return `${name} ${version} (${license})\n\n${file ? readFileSync(join(folder, file), "utf8").trim() : ""}`;
  });
  return `${texts.join(`\n\n${"-".repeat(80)}\n\n`)}\n`;
}

mkdirSync(out, { recursive: true });
const html = readFileSync(join(CONSOLE, "index.html"), "utf8");
const sheets = [...html.matchAll(/<link rel="stylesheet" href="\{\{base\}\}\/([^"]+)">\n?/g)];
const { metafile } = await build({ ...options, entryPoints, plugins: plugins(), write: false });
const imports = Object.values(metafile.inputs).flatMap((input) => input.imports);
const later = imports.filter(({ kind }) => kind === "dynamic-import").map(({ path }) => resolve(path));
const scripts = await build({
  ...options,
  banner: { js: NOTICE },
  entryPoints,
  plugins: plugins(shared(metafile), [...entryPoints, ...later]),
});
await build({
  bundle: true,
  logLevel: "warning",
  minify: true,
  outfile: join(out, "styles.css"),
  stdin: { contents: sheets.map(([, name]) => `@import "./${name}";`).join("\n"), loader: "css", resolveDir: CONSOLE },
});
const main = Object.entries(scripts.metafile.outputs).find(([name]) => resolve(name) === join(out, "main.js"))[1];
const chunks = main.imports.filter(({ kind }) => kind === "import-statement").map(({ path }) => relative(out, path));
const preloads = chunks.map((name) => `<link rel="modulepreload" href="{{base}}/${name}">\n`).join("");
const [begin] = html.split(sheets[0][0]);
const rest = html.slice(html.lastIndexOf(sheets.at(-1)[0]) + sheets.at(-1)[0].length);
const styles = `<link rel="stylesheet" href="{{base}}/styles.css">\n`;
writeFileSync(join(out, "index.html"), begin + styles + preloads + rest);
writeFileSync(join(out, "icon.svg"), readFileSync(join(CONSOLE, "icon.svg")));
writeFileSync(join(out, "licenses.txt"), licenses(Object.keys(scripts.metafile.inputs)));
