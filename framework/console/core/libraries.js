/** The libraries from npm that a built console has, in `libraries/`. A bare checkout has none: this module says so. */

export const isBuilt = false;
export const loadColours = null;
export const loadCodeField = null;
