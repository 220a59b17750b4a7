/** The libraries of a built console: `build.mjs` puts this module in the place of `core/libraries.js`. */

export { readMarkdown } from "./markdown.js";
export const isBuilt = true;
export const loadColours = () => import("./colours.js");
export const loadCodeField = () => import("./code-field.js");
