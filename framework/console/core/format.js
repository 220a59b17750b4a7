/** Numbers, times and ids as the console shows them. */

import { now } from "./clock.js";
import { language, t } from "./i18n.js";

const LOCALE = language === "zh" ? "zh-CN" : "en-GB";
const DAY = 86_400_000;

/** @typedef {string | number | Date | null | undefined} Moment ISO text, milliseconds since the epoch, or a date */

/** @type {Map<string, Intl.DateTimeFormat>} */
const formats = new Map();

/**
 * Today 14:20:44, this week Mon 16:12, else 22 Nov 2026.
 * @param {Moment} moment
 */
export function time(moment) {
  if (moment === null || moment === undefined) return "–";
  const date = new Date(moment);
  const present = new Date(now());
  const today = date.toDateString() === present.toDateString();
  if (today) return dated(date, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const recent = Math.abs(present.getTime() - date.getTime()) < 6 * DAY;
  if (recent) return dated(date, { weekday: "short", hour: "2-digit", minute: "2-digit" });
  return dated(date, { day: "numeric", month: "short", year: "numeric" });
}

/**
 * The date and time with its zone, for titles.
 * @param {Moment} moment
 */
export function fullTime(moment) {
  if (moment === null || moment === undefined) return "";
  return dated(new Date(moment), { dateStyle: "medium", timeStyle: "long" });
}

/**
 * "2 s ago", "5 min ago", then the time.
 * @param {Moment} moment
 */
export function ago(moment) {
  if (moment === null || moment === undefined) return "–";
  const passed = Math.max(0, now() - new Date(moment).getTime());
  if (passed >= 3_600_000) return time(moment);
  const unit = passed < 60_000 ? 1000 : 60_000;
  return t("{time} ago", { time: duration(passed - (passed % unit)) });
}

/**
 * 0.4 ms, 313 ms, 2.31 s, 41.2 s, 14 min 7 s, 3 h 5 min, 2 d.
 * @param {number | null | undefined} ms
 */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  if (ms < 1) return ms === 0 ? "0 s" : `${Math.max(0.1, ms).toFixed(1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 9.995) return `${trim(s.toFixed(2))} s`;
  if (s < 59.95) return `${trim(s.toFixed(1))} s`;
  const whole = Math.round(s);
  if (whole < 3600) return two(Math.floor(whole / 60), t("min"), whole % 60, t("s"));
  const minutes = Math.round(s / 60);
  if (minutes < 1440) return two(Math.floor(minutes / 60), t("h"), minutes % 60, t("min"));
  return two(Math.floor(minutes / 1440), t("d"), Math.round((minutes % 1440) / 60), t("h"));
}

/**
 * Minutes and seconds that are left, such as 11:42, or the largest unit from one hour on.
 * @param {number} ms
 */
export function timeLeft(ms) {
  const s = Math.max(0, Math.ceil(ms / 1000));
  if (s < 3600) return `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`;
  return s < 172_800 ? `${Math.floor(s / 3600)} ${t("h")}` : `${Math.floor(s / 86_400)} ${t("d")}`;
}

/** @param {number | null | undefined} n 4,578; from a million 11.9 M */
export function tokens(n) {
  if (n === null || n === undefined) return "–";
  return n < 1e6 ? Math.round(n).toLocaleString("en-US") : `${(n / 1e6).toFixed(1)} M`;
}

/** @param {number | null | undefined} usd $0.0231 below one dollar, $38.64 above; unknown is a dash */
export function cost(usd) {
  if (usd === null || usd === undefined) return "–";
  if (usd >= 1) return `$${usd.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  return usd === 0 ? "$0" : `$${usd >= 0.0001 ? trim(usd.toFixed(4)) : usd.toPrecision(1)}`;
}

/** @param {number} share 0 to 1 */
export function percent(share) {
  const value = share * 100;
  return `${value >= 10 || value === 0 ? Math.round(value) : value.toFixed(1)}\u2009%`;
}

/** @param {number} n */
export function bytes(n) {
  if (n < 1000) return t("{n} bytes", { n });
  return n < 1e6 ? `${trim((n / 1000).toFixed(1))} kB` : `${trim((n / 1e6).toFixed(1))} MB`;
}

/** @param {string | null | undefined} digest its first 8 digits */
export const digest = (digest) => (digest ?? "").slice(0, 8);

/** @param {string} id `run_` and 8 digits */
export const runName = (id) => id.slice(0, 12);

/** @param {string} text without zeros at the end of a fraction */
const trim = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

/** @param {number} a @param {string} unit @param {number} b @param {string} smaller */
const two = (a, unit, b, smaller) => (b ? `${a} ${unit} ${b} ${smaller}` : `${a} ${unit}`);

/** @param {Date} date @param {Intl.DateTimeFormatOptions} options */
function dated(date, options) {
  const name = JSON.stringify(options);
  const format = formats.get(name) ?? new Intl.DateTimeFormat(LOCALE, options);
  formats.set(name, format);
  return Number.isNaN(date.getTime()) ? "–" : format.format(date);
}
