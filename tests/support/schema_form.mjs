// What a person does with a form of the console, without a page: types texts into its fields.
import { parseExact } from "../../framework/console/core/exact-json.js";
import { fieldsOf, readField, withChanges } from "../../framework/console/widgets/schema-fields.js";

/** Return the JSON of a value after texts were typed into the fields with these paths. */
export function fillIn(schema, value, typed = {}) {
    const before = parseExact(value);
    const changes = new Map();
    for (const field of fieldsOf(JSON.parse(schema), before)) {
        const name = field.path.join(".");
        const text = Object.hasOwn(typed, name) ? typed[name] : field.text;
        if (text === field.text) continue;
        const read = readField(field, text);
        if (read.problem) throw new TypeError(read.problem);
        changes.set(field, read.value);
    }
    return JSON.stringify(withChanges(before, changes));
}

/** Return the kind and the text of each field, by its path. */
export function shownFields(schema, value) {
    const fields = fieldsOf(JSON.parse(schema), parseExact(value));
    return Object.fromEntries(fields.map(({ path, kind, text }) => [path.join("."), [kind, text]]));
}
