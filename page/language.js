// The language of the page, and formats that depend on it.

/** @typedef {keyof typeof import('./strings/en.js').en} TextKey */

const preferred = localStorage.getItem('language') ?? navigator.language.slice(0, 2);
export const language = preferred === 'zh' ? 'zh' : 'en';

/** Only the table of the chosen language is loaded. @type {Record<TextKey, string>} */
const texts = language === 'zh' ? (await import('./strings/zh.js')).zh : (await import('./strings/en.js')).en;

/** @param {string} next */
export function setLanguage(next) {
  localStorage.setItem('language', next);
  location.reload();
}

/**
 * The text for a key; `{name}` is replaced by the value of that name.
 * @param {TextKey} key
 * @param {Record<string, string | number>} [values]
 */
export function t(key, values = {}) {
  return texts[key].replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ''));
}

/**
 * The text for a wire value such as a state, or the value itself when there is none.
 * @param {string} prefix
 * @param {string} value
 */
export function wireText(prefix, value) {
  const key = `${prefix}_${value}`;
  return key in texts ? texts[/** @type {TextKey} */ (key)] : value;
}

const numbers = new Intl.NumberFormat(language);
const dates = new Intl.DateTimeFormat(language, { dateStyle: 'medium', timeStyle: 'medium' });
const clock = new Intl.DateTimeFormat(language, { hour: '2-digit', minute: '2-digit', hour12: false });
const days = new Intl.DateTimeFormat(language, { month: 'short', day: 'numeric' });

/** @param {number} value */
export const number = (value) => numbers.format(value);
/** @param {string} at */
export const fullTime = (at) => (Number.isNaN(Date.parse(at)) ? at : dates.format(new Date(at)));

/**
 * The time of day for today, otherwise the day.
 * @param {string} at
 * @param {number} now
 */
export function shortTime(at, now) {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return at;
  const isToday = date.toDateString() === new Date(now).toDateString();
  return isToday ? clock.format(date) : days.format(date);
}

/**
 * A duration with its unit, such as `42 s`, `5 min` or `3 d`.
 * @param {number} ms
 */
export function duration(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 100_000) return `${numbers.format(Math.round(ms / 100) / 10)} s`;
  if (ms < 6_000_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${Math.round(ms / 3_600_000)} h`;
  return `${Math.round(ms / 86_400_000)} d`;
}
