// Compares the modules in joined scripts with their files: node compare_scripts.mjs ACORN < {files, scripts}
import { readFileSync } from "node:fs";
import { posix } from "node:path";

const { parse } = await import(process.argv[2]);
const { files, scripts } = JSON.parse(readFileSync(0, "utf-8"));

const treeOf = (text) => parse(text, { ecmaVersion: "latest", sourceType: "module" });
const without = (node) =>
  JSON.stringify(node, (key, value) =>
    key === "start" || key === "end" ? undefined : typeof value === "bigint" ? `${value}n` : value,
  );

// What a module imports, contains and exports, from its file.
function ofFile(name) {
  const found = { imports: [], body: [], exports: [] };
  const number = (target) => names.indexOf(posix.join(posix.dirname(name), target));
  for (const node of treeOf(files[name]).body) {
    if (node.type === "ImportDeclaration") {
      const locals = node.specifiers.map((one) => [one.imported?.name ?? kinds[one.type], one.local.name]);
      found.imports.push([number(node.source.value), locals]);
    } else if (node.type === "ExportDefaultDeclaration") {
      found.body.push(node.declaration);
      found.exports.push("default");
    } else if (node.type === "ExportNamedDeclaration") {
      found.body.push(node.declaration);
      found.exports.push(...(node.declaration.declarations ?? [node.declaration]).map((one) => one.id.name));
    } else found.body.push(node);
  }
  const loads = /"type":"ImportExpression","source":(\{[^{}]*\})(,"options":null)?/g;
  const loaded = (_, source) => load(posix.join(posix.dirname(name), JSON.parse(source).value));
  const body = found.body.map(without).join().replace(loads, loaded);
  return JSON.stringify([found.imports, body, found.exports]);
}

const kinds = { ImportNamespaceSpecifier: "*", ImportDefaultSpecifier: "default" };
const names = Object.keys(files).sort();
const load = (target) => without(treeOf(`load("${target}", ${names.indexOf(target)})`).body[0].expression).slice(1, -1);

// The same, from its function in a script.
function ofFunction({ body: block, async }) {
  const found = { imports: [], body: [], exports: [] };
  for (const node of block.body) {
    const call = node.declarations?.[0].init ?? node.expression;
    if (call?.callee?.name === "need") {
      const id = node.declarations?.[0].id;
      const locals = id?.properties?.map((one) => [one.key.name, one.value.name]) ?? (id ? [["*", id.name]] : []);
      found.imports.push([call.arguments[0].value, locals]);
    } else if (node.type === "ReturnStatement") {
      found.exports.push(...node.argument.properties.map((one) => one.key.name));
    } else found.body.push(node);
  }
  if (found.exports.includes("default")) found.body.push(found.body.pop().declarations[0].init);
  return JSON.stringify([found.imports, found.body.map(without).join(), found.exports]);
}

function tableOf(text) {
  const [first] = treeOf(text).body;
  return (first.declarations?.[0].init ?? first.declaration.body).properties;
}

const compared = Object.values(scripts).flatMap(tableOf);
const different = compared.filter(({ key, value }) => ofFile(names[key.value]) !== ofFunction(value));
const found = new Set(compared.map(({ key }) => key.value));
console.log(JSON.stringify({ compared: found.size, different: different.map(({ key }) => names[key.value]) }));
