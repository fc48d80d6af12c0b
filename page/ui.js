// Parts that several views share: texts of strangers, times, states, messages to the user, lists.

import { html, useCallback, useEffect, useRef, useState } from './html.js';
import { courierNow } from './api.js';
import { duration, fullTime, shortTime, t, wireText } from './language.js';
import { useKeys } from './keys.js';

/** Longest text that is shown without asking: a 1 MB line would freeze the layout. */
const MAX_TEXT = 20_000;

// Controls and characters that change the direction of the text around them.
// eslint-disable-next-line no-control-regex
const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/**
 * A text of a stranger without control and direction characters; it keeps its length.
 * @param {string} text
 */
export const safeText = (text) => text.replace(UNSAFE, '\ufffd');

/**
 * A text of a stranger in one line.
 * @param {{children?: any, class?: string, title?: string}} props
 */
export function Foreign({ children, class: name, title }) {
  const text = safeText(String(children ?? '').slice(0, 1000));
  return html`<bdi class=${name} title=${title}>${text}</bdi>`;
}

/**
 * A text of a stranger with its line breaks. A long text is cut until the user asks for all of it.
 * @param {{text: string}} props
 */
export function ForeignText({ text }) {
  const [shown, setShown] = useState(MAX_TEXT);
  const rest = text.length - shown;
  return html`<div class="text" dir="auto">${safeText(text.slice(0, shown))}
    ${rest > 0 && html`<p><button onClick=${() => setShown(shown + 10 * MAX_TEXT)}>${t('show_more', { n: rest })}</button></p>`}
  </div>`;
}

/**
 * A point in time; the full time is in its title.
 * @param {{at?: string | null, age?: boolean}} props
 */
export function Time({ at, age }) {
  if (!at) return null;
  const now = courierNow();
  const text = age ? duration(now - Date.parse(at)) : shortTime(at, now);
  return html`<time datetime=${at} title=${fullTime(at)}>${text}</time>`;
}

/** Which colour a wire value has. */
const TONES = {
  NEW: 'info', UNREAD: 'info', WAIT: 'info', WAITING: 'info', PENDING: 'warn',
  CLAIMED: 'busy', READING: 'busy', SENDING: 'busy', AWAY: 'busy',
  COMPLETED: 'good', READED: 'good', SENT: 'good', DONE: 'good', MERGED: 'good', APPROVED: 'good', hearing: 'good', ok: 'good',
  HELD: 'warn', FAILED: 'warn', UNCERTAIN: 'warn', quiet: 'plain', degraded: 'warn', paused: 'warn',
  DEADLETTER: 'bad', DEAD: 'bad', TRASHED: 'plain', deaf: 'bad', down: 'bad', failed: 'bad', REJECTED: 'bad',
};

/**
 * A state as a badge: a colour and its name, so that the colour alone says nothing.
 * @param {{of: string}} props
 */
export function State({ of }) {
  const tone = /** @type {Record<string, string>} */ (TONES)[of] ?? 'plain';
  return html`<span class="badge ${tone}" title=${of}>${wireText('state', of)}</span>`;
}

/**
 * The account of a shadow DID, or the last part of another DID; the whole DID is in its title.
 * @param {string} did
 */
export function didName(did) {
  const shadow = /^did:msgtunnel:(.+)\.(user|group|channel|addr)\.([^.]+)$/.exec(did);
  const name = shadow ? shadow[1] : did.split(':').slice(2).join(':') || did;
  try {
    return shadow ? `${decodeURIComponent(name)} · ${shadow[3]}` : decodeURIComponent(name);
  } catch {
    return did;
  }
}

/** @param {{did?: string}} props */
export const Did = ({ did }) => (did ? html`<${Foreign} class="did" title=${did}>${didName(did)}<//>` : null);

/** @param {{id: string, length?: number}} props */
export const Id = ({ id, length = 18 }) => html`<code title=${id}>${id.length > length ? `${id.slice(0, length)}…` : id}</code>`;

/**
 * What to do next when there is nothing to show.
 * @param {{title: string, children?: any, command?: string}} props
 */
export const Empty = ({ title, children, command }) => html`<div class="empty">
  <p class="empty-title">${title}</p>
  ${children && html`<p>${children}</p>`}
  ${command && html`<pre class="command"><code>${command}</code></pre>`}
</div>`;

/** @param {{error: Error | null, retry?: () => void}} props */
export const Failure = ({ error, retry }) => error && html`<div class="failure" role="alert">
  <p>${error.message}</p>
  ${retry && html`<button onClick=${retry}>${t('try_again')}</button>`}
</div>`;

export const Loading = () => html`<p class="loading" role="status">${t('loading')}</p>`;

/**
 * A view before its data is there, or when it cannot be loaded.
 * @param {{title: string, error: Error | null, retry: () => void}} props
 */
export const Pending = ({ title, error, retry }) => html`<section class="view"><h1>${title}</h1>
  ${error ? html`<${Failure} error=${error} retry=${retry} />` : html`<${Loading} />`}</section>`;

/** @type {(text: string, isError?: boolean) => void} */
let showNotice = () => {};

/** The place where results of actions are shown and read aloud. */
export function Notices() {
  const [notice, setNotice] = useState({ text: '', isError: false });
  showNotice = useCallback((text, isError = false) => setNotice({ text, isError }), []);
  useEffect(() => {
    if (!notice.text) return undefined;
    const timer = setTimeout(() => setNotice({ text: '', isError: false }), notice.isError ? 12_000 : 5000);
    return () => clearTimeout(timer);
  }, [notice]);
  return html`<div class="notices" role=${notice.isError ? 'alert' : 'status'} aria-live="polite">
    ${notice.text && html`<p class="notice ${notice.isError ? 'bad' : ''}"><bdi>${notice.text}</bdi></p>`}
  </div>`;
}

/**
 * Tells the user something.
 * @param {string} text
 */
export const notify = (text) => showNotice(text);

/**
 * Runs an action of the user and tells the user why it failed. Returns whether it succeeded.
 * @param {() => Promise<unknown>} action
 * @param {string} [done]
 */
export async function act(action, done) {
  try {
    await action();
    if (done) showNotice(done);
    return true;
  } catch (error) {
    showNotice(error instanceof Error ? error.message : String(error), true);
    return false;
  }
}

/**
 * Loads a value, and loads it again when a key changes or `reload` is called. While it is loaded
 * again, the previous value stays.
 * @template T
 * @param {() => Promise<T>} load
 * @param {unknown[]} keys
 */
export function useLoad(load, keys) {
  /** @type {[{value: T | null, error: Error | null}, (next: any) => void]} */
  const [state, setState] = useState({ value: null, error: null });
  const latest = useRef(0);
  const run = useCallback(async () => {
    latest.current += 1;
    const number = latest.current;
    try {
      const value = await load();
      if (number === latest.current) setState({ value, error: null });
    } catch (error) {
      if (number === latest.current) setState((/** @type {any} */ old) => ({ ...old, error }));
    }
  }, keys);
  useEffect(() => {
    run();
    return () => {
      latest.current += 1;
    };
  }, [run]);
  return { ...state, reload: run };
}

/**
 * A list with a cursor: `j` and `k` move it, Enter opens the row. The row with the cursor has the
 * focus, so that a screen reader follows.
 * @template T
 * @param {{rows: T[], idOf: (row: T) => string, open: (row: T) => void, start?: string,
 *   keys?: (row: T) => import('./keys.js').KeyTable}} options
 */
export function useCursor({ rows, idOf, open, start, keys }) {
  const [current, setCurrent] = useState(start ?? '');
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const index = rows.findIndex((row) => idOf(row) === current);
  /** @param {number} next */
  const move = (next) => {
    const row = rows[Math.min(Math.max(next, 0), rows.length - 1)];
    if (!row) return;
    setCurrent(idOf(row));
    const element = list.current?.querySelector(`[data-id="${CSS.escape(idOf(row))}"]`);
    if (element instanceof HTMLElement) element.focus();
  };
  const row = rows[index];
  useKeys({
    j: () => move(index + 1),
    k: () => move(index < 0 ? 0 : index - 1),
    ...(row ? { Enter: () => open(row), ...keys?.(row) } : {}),
  });
  // Back from the opened row: the focus returns to it.
  const ready = rows.length > 0;
  useEffect(() => {
    if (start && ready) move(index);
  }, [ready]);
  return { current, setCurrent, list };
}

/**
 * Asks before an action that cannot be undone.
 * @param {{title: string, children?: any, confirm: string, onConfirm: () => void, onClose: () => void}} props
 */
export function Confirm({ title, children, confirm, onConfirm, onClose }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => dialog.current?.showModal(), []);
  return html`<dialog ref=${dialog} onClose=${onClose} aria-labelledby="confirm-title">
    <h2 id="confirm-title">${title}</h2>
    ${children}
    <form method="dialog" class="actions">
      <button>${t('cancel')}</button>
      <button class="primary" onClick=${onConfirm}>${confirm}</button>
    </form>
  </dialog>`;
}

/**
 * A row of filters, of which one is chosen.
 * @param {{label: string, value: string, options: [string, string][], onChange: (value: string) => void}} props
 */
export const Choice = ({ label, value, options, onChange }) => html`<div class="choice" role="group" aria-label=${label}>
  ${options.map(([id, text]) => html`<button key=${id} aria-pressed=${id === value} onClick=${() => onChange(id)}>${text}</button>`)}
</div>`;

/**
 * Next and first page of a list.
 * @param {{cursor: string, next?: string | null, onMove: (cursor: string) => void}} props
 */
export const Pages = ({ cursor, next, onMove }) => (cursor || next) && html`<nav class="pages" aria-label=${t('pages')}>
  ${cursor && html`<button onClick=${() => onMove('')}>${t('newest')}</button>`}
  ${next && html`<button onClick=${() => onMove(next)}>${t('older')}</button>`}
</nav>`;
