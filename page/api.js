// Requests to the courier. The browser sends the cookie; the page never sees a token.

import { t } from './language.js';

/** Time limit of one request. */
const TIMEOUT_MS = 30_000;

/** A request that the courier rejected, or that got no answer. */
export class RequestError extends Error {
  /**
   * @param {number} status HTTP status; 0 without an answer
   * @param {string} code
   * @param {string} message
   * @param {Record<string, unknown>} body
   */
  constructor(status, code, message, body = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.body = body;
  }
}

/** @type {Set<(status: 'ok' | 'logged_out' | 'unreachable') => void>} */
const watchers = new Set();

/**
 * Calls `watcher` after each request with what it says about the connection.
 * @param {(status: 'ok' | 'logged_out' | 'unreachable') => void} watcher
 */
export function watchConnection(watcher) {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

/** Difference between the clock of the courier and the clock of this browser, in ms. */
let clockOffset = 0;

/** The time by the clock of the courier: the clock of the browser may be wrong. */
export const courierNow = () => Date.now() + clockOffset;

/**
 * @param {string} method
 * @param {string} path
 * @param {unknown} [body]
 * @returns {Promise<any>}
 */
async function request(method, path, body) {
  /** @type {RequestInit} */
  const options = { method, credentials: 'same-origin', cache: 'no-store', redirect: 'error',
    signal: AbortSignal.timeout(TIMEOUT_MS), headers: { accept: 'application/json' } };
  if (method !== 'GET') {
    options.headers = { accept: 'application/json', 'content-type': 'application/json' };
    options.body = JSON.stringify(body ?? {});
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    watchers.forEach((watcher) => watcher('unreachable'));
    throw new RequestError(0, 'unreachable', t('error_unreachable'));
  }
  const date = Date.parse(response.headers.get('date') ?? '');
  // The header has full seconds.
  if (date && Math.abs(date - Date.now()) > 2000) clockOffset = date - Date.now();
  else if (date) clockOffset = 0;
  watchers.forEach((watcher) => watcher(response.status === 401 ? 'logged_out' : 'ok'));
  const text = await response.text().catch(() => '');
  let answer = /** @type {any} */ ({});
  try {
    answer = text ? JSON.parse(text) : {};
  } catch {
    throw new RequestError(response.status, 'bad_answer', t('error_answer'));
  }
  if (response.ok) return answer;
  const message = answer.message ?? `${response.status} ${response.statusText}`;
  throw new RequestError(response.status, answer.code ?? 'error', message, answer);
}

/** @param {string} path */
export const get = (path) => request('GET', path);
/** @param {string} path @param {unknown} [body] */
export const post = (path, body) => request('POST', path, body);
/** @param {string} path @param {unknown} [body] */
export const put = (path, body) => request('PUT', path, body);
/** @param {string} path */
export const remove = (path) => request('DELETE', path);

/**
 * A path with encoded segments and a query without empty values.
 * @param {string[]} segments
 * @param {Record<string, string | number | undefined | null>} [query]
 */
export function apiPath(segments, query = {}) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== '') params.set(name, String(value));
  }
  const text = params.toString();
  return `/api/v1/${segments.map(encodeURIComponent).join('/')}${text && `?${text}`}`;
}
