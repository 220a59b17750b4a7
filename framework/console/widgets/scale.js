/** The scales of charts: round values, places in time. Pure functions. */

/**
 * Return evenly spaced round values, from 0 to at least `max`.
 * @param {number} max
 * @param {{unit?: number, whole?: boolean}} [options] unit: what must be round, such as 60000 for minutes;
 *   whole: without fractions
 */
export function ticks(max, { unit = 1, whole = false } = {}) {
  if (!(max > 0)) return [0, unit];
  const rough = Math.max(max / unit / 4, whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const fits = [1, 2, 2.5, 5].find((n) => n * power >= rough * 0.9999 && !(whole && (n * power) % 1)) ?? 10;
  const step = fits * power * unit;
  const count = Math.max(1, Math.ceil(max / step - 1e-9));
  return Array.from({ length: count + 1 }, (_, i) => Number((i * step).toPrecision(12)));
}

/** @param {number} max milliseconds; the unit in which a scale of durations is round */
export const durationUnit = (max) => (max < 9e4 ? 1e3 : max < 54e5 ? 6e4 : 36e5);

/**
 * Return where a time is among steps: 2.5 is in the middle of the third one.
 * @param {readonly number[]} starts in milliseconds, ascending
 * @param {number} end of the last step
 * @param {number} at
 */
export function place(starts, end, at) {
  const i = Math.max(0, starts.findLastIndex((start) => start <= at));
  const next = starts[i + 1] ?? Math.max(end, starts[i] + 1);
  return i + Math.min(1, Math.max(0, (at - starts[i]) / (next - starts[i])));
}

/**
 * Return the indexes of the steps that get a label below the chart: beginnings of days or, with few days, of hours.
 * @param {readonly number[]} starts in milliseconds
 * @param {number} room pixels a step
 * @param {number} [least] pixels a label
 */
export function timeLabels(starts, room, least = 58) {
  const dates = starts.map((start) => new Date(start));
  const indexes = [...starts.keys()];
  const hourly = starts.length < 2 || starts[1] - starts[0] < 72e5;
  const days = indexes.filter((i) => dates[i].getDate() !== dates[i - 1]?.getDate() && (i || !dates[i].getHours()));
  if (hourly && days.length < 4) {
    const every = [1, 2, 3, 6, 12].find((hours) => hours * room >= least) ?? 24;
    return indexes.filter((i) => dates[i].getHours() % every === 0);
  }
  const apart = (days[days.length - 1] - days[0]) / (days.length - 1) || 1;
  const every = Math.ceil(least / (apart * room));
  return days.filter((_, i) => (days.length - 1 - i) % every === 0);
}
