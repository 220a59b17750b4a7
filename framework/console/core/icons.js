// Icons on a grid of 16, drawn with one stroke of 1.5 in the colour of the text around them.
import { svg } from "./dom.js";

const RING = "M13.5 8a5.5 5.5 0 1 1-11 0 5.5 5.5 0 0 1 11 0z";
const PERSON = "M10.6 5.1a2.6 2.6 0 1 1-5.2 0 2.6 2.6 0 0 1 5.2 0z";
/** @param {number} x */
const dot = (x) => `M${x + 0.4} 8a.4.4 0 1 1-.8 0 .4.4 0 0 1 .8 0z`;

// What follows "|" is filled as well.
/** @type {Record<string, string>} */
const PATHS = {
  mark: "M3 13 8 3l5 10M5.3 9.5h5.4",
  chat: "M5 3h6a2 2 0 0 1 2 2v4a2 2 0 0 1-2 2H7l-2.8 2.5V11A1.5 1.5 0 0 1 3 9.5V5a2 2 0 0 1 2-2z",
  inbox: "M2.5 9.3 4.6 3.6h6.8l2.1 5.7v3.1a.9.9 0 0 1-.9.9H3.4a.9.9 0 0 1-.9-.9zh3.2l.9 1.7h2.8l.9-1.7h3.2",
  runs: "M2.5 4.2h5.6M5 8h6.4M8.6 11.8h4.9",
  agents: "m8 2.1 5.2 3v5.8L8 13.9l-5.2-3V5.1zM9.8 8a1.8 1.8 0 1 1-3.6 0 1.8 1.8 0 0 1 3.6 0z",
  layers: "M8 2.3 13.6 5 8 7.8 2.4 5zM2.4 8 8 10.8 13.6 8M2.4 11 8 13.8l5.6-2.8",
  fleet: "M2.8 3h10.4v4H2.8zM2.8 9h10.4v4H2.8zM5.2 5v.1M5.2 11v.1M8.2 5h2.4M8.2 11h2.4",
  memory: "M4 3h8v10l-4-3-4 3z",
  usage: "M2.4 13.4h11.2M4.6 10.9V8.7M8 10.9V3.2M11.4 10.9V6.2",
  search: "M11.3 7a4.3 4.3 0 1 1-8.6 0 4.3 4.3 0 0 1 8.6 0zM10.1 10.1l3.3 3.3",
  check: "m3.4 8.5 3 2.9 6.2-6.7",
  x: "m4.3 4.3 7.4 7.4m0-7.4-7.4 7.4",
  alert: "M7.2 3a.9.9 0 0 1 1.6 0l4.9 8.9a.9.9 0 0 1-.8 1.4H3.1a.9.9 0 0 1-.8-1.4zM8 6.4v3.1M8 11.4v.1",
  info: `${RING}M8 7.5v3.2M8 5.2v.1`,
  clock: `${RING}M8 4.8V8l2.2 1.4`,
  right: "M6.1 3.7 10.4 8l-4.3 4.3",
  left: "M9.9 3.7 5.6 8l4.3 4.3",
  down: "M3.7 6.1 8 10.4l4.3-4.3",
  tool: "M13 5.2a3.4 3.4 0 0 1-4.6 3.6l-3.8 4a1.6 1.6 0 0 1-2.3-2.3l4-3.8A3.4 3.4 0 0 1 10.8 3L8.7 5.1l.4 1.8 1.8.4z",
  model: "M8 2.2c.5 3.4 2.4 5.3 5.8 5.8-3.4.5-5.3 2.4-5.8 5.8-.5-3.4-2.4-5.3-5.8-5.8 3.4-.5 5.3-2.4 5.8-5.8z",
  plan: "m2.3 4.3 1.1 1L5.2 3M2.3 8.5l1.1 1 1.8-2.3M2.6 12.7h2.2M7.8 4.2h5.8M7.8 8.4h5.8M7.8 12.7h5.8",
  human: `${PERSON}M3.1 13.4c.5-2.6 2.3-4 4.9-4s4.4 1.4 4.9 4`,
  stop: "M5.4 4h5.2A1.4 1.4 0 0 1 12 5.4v5.2a1.4 1.4 0 0 1-1.4 1.4H5.4A1.4 1.4 0 0 1 4 10.6V5.4A1.4 1.4 0 0 1 5.4 4z",
  pause: "M5.6 3.6v8.8M10.4 3.6v8.8",
  refresh: "M13.2 8.2a5.2 5.2 0 1 1-1.5-3.9L13.3 6m0-3.6V6H9.7",
  copy: "M7 5.5h5L13.5 7v5L12 13.5H7L5.5 12V7zM10.5 2.5H4L2.5 4v6.5",
  file: "M9 2.2H4.6a1 1 0 0 0-1 1v9.6a1 1 0 0 0 1 1h6.8a1 1 0 0 0 1-1V5.6zV5.6h3.4",
  folder: "M2.3 4.4a1 1 0 0 1 1-1h2.8l1.6 1.8h5a1 1 0 0 1 1 1v5.4a1 1 0 0 1-1 1H3.3a1 1 0 0 1-1-1z",
  ban: `${RING}M4.2 4.2l7.6 7.6`,
  widen: "M9.6 6.4l3.8-3.8m-3.2 0h3.2v3.2M6.4 9.6l-3.8 3.8m3.2 0H2.6v-3.2",
  tighten: "M13.4 2.6 9.7 6.3m0-3.2v3.2h3.2M2.6 13.4l3.7-3.7m0 3.2V9.7H3.1",
  theme: `${RING}|M8 2.5a5.5 5.5 0 0 1 0 11z`,
  plus: "M8 3.3v9.4M3.3 8h9.4",
  more: `|${dot(3.5)}${dot(8)}${dot(12.5)}`,
  filter: "M2.6 4.2h10.8M4.7 8h6.6M6.7 11.8h2.6",
  send: "M8 13V3.4M4 7.3l4-4 4 4",
  undo: "M5.4 3.2 2.5 6.1 5.4 9M2.8 6.1h6.5a3.6 3.6 0 0 1 0 7.2H6.2",
  reply: "M6 3.4 2.5 6.9 6 10.4M2.8 6.9h6.6a4 4 0 0 1 4 4v1.7",
  route: "M3.4 13.6v-2.9A2.7 2.7 0 0 1 6.1 8h3.5a2.7 2.7 0 0 0 2.7-2.7V2.6M10 4.7l2.3-2.3 2.3 2.3",
  edit: "m10.5 3 2.5 2.5-7.4 7.4-3.1.6.6-3.1z",
  link: "M6.6 3.4H3.4v9.2h9.2V9.4M9.6 2.6h3.8v3.8M13 3 7.6 8.4",
  shield: "m8 2 4.8 1.8v3.8c0 3-1.9 5.2-4.8 6.3-2.9-1.1-4.8-3.3-4.8-6.3V3.8z",
  bolt: "M8.9 2.2 3.8 8.9h4l-.7 4.9 5.1-6.7h-4z",
  flask: "M5.9 2.4h4.2M6.7 2.4v3.8l-3.5 5.7a1.1 1.1 0 0 0 .9 1.7h7.8a1.1 1.1 0 0 0 .9-1.7L9.3 6.2V2.4M5.1 9.8h5.8",
  pin: "M8 9.9v3.8M5.3 2.5h5.4l-.8 3.9 1.9 3.5H4.2l1.9-3.5z",
  off:
    "m2.4 2.4 11.2 11.2M4.5 8.6a5 5 0 0 1 2-1.4M2.4 6a8.6 8.6 0 0 1 2-1.4" +
    "M8.3 3.8A8.4 8.4 0 0 1 13.6 6M6.6 10.8a2 2 0 0 1 2.7 0M8 13v.1",
  key: "M7.6 8.4 13.2 2.8M10.6 5.4l2 2M8.2 10.6a2.8 2.8 0 1 1-5.6 0 2.8 2.8 0 0 1 5.6 0z",
  globe: `${RING}M2.6 8h10.8M8 2.5c3.4 3.4 3.4 7.6 0 11-3.4-3.4-3.4-7.6 0-11z`,
  up:
    "M5.2 7.2 8 2.6a1.5 1.5 0 0 1 1.4 1.9l-.5 2h3.3a1.2 1.2 0 0 1 1.2 1.5l-.9 4a1.3 1.3 0 0 1-1.3 1h-6" +
    "M2.7 7.2h2.5V13H2.7z",
  downvote:
    "M5.2 8.8 8 13.4a1.5 1.5 0 0 0 1.4-1.9l-.5-2h3.3a1.2 1.2 0 0 0 1.2-1.5l-.9-4a1.3 1.3 0 0 0-1.3-1h-6" +
    "M2.7 8.8h2.5V3H2.7z",
  chain:
    "M6.4 9.6 9.6 6.4M7.2 4.8l1.5-1.5a2.7 2.7 0 0 1 3.9 3.9l-1.5 1.5" +
    "M8.8 11.2l-1.5 1.5a2.7 2.7 0 0 1-3.9-3.9l1.5-1.5",
  compare: "M2.6 3.2h4.2v9.6H2.6zM9.2 3.2h4.2v9.6H9.2z",
  download: "M8 2.8v7.2M4.6 6.9 8 10.3l3.4-3.4M3 13.3h10",
};

/**
 * Return the icon `name`, hidden from screen readers: the label is the text or the button around it.
 * @param {string} name
 * @param {{size?: number}} [options] size in pixels, 16 if left out
 * @returns {SVGElement}
 */
export function icon(name, { size = 16 } = {}) {
  const paths = PATHS[name];
  if (paths === undefined) throw new Error(`unknown icon: ${name}; icons.js lists the names`);
  const [lines, filled] = paths.split("|");
  return svg(
    `svg.i.i-${name}`,
    { viewBox: "0 0 16 16", width: size, height: size, "aria-hidden": "true" },
    svg("path", { d: lines }),
    filled ? svg("path", { d: filled, fill: "currentColor" }) : null,
  );
}
