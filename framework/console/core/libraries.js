/** The libraries from npm that a built console has, in `libraries/`. A bare checkout has none: this module says so. */

export const isBuilt = false;
/** @type {typeof import("../libraries/markdown.js").readMarkdown | null} */
export const readMarkdown = null;
/** @type {(() => Promise<typeof import("../libraries/colours.js")>) | null} */
export const loadColours = null;
/** @type {(() => Promise<typeof import("../libraries/code-field.js")>) | null} */
export const loadCodeField = null;
