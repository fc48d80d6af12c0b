// Dead letters of all kinds, grouped by cause. UNCERTAIN deliveries are apart: they may have arrived.

import { html, useState } from '../html.js';
import { apiPath, get, post } from '../api.js';
import { t, wireText } from '../language.js';
import { link, setFilters } from '../route.js';
import { useEvents } from '../stream.js';
import { act, Choice, Confirm, didName, Empty, Failure, Foreign, Id, Loading, notify, State, Time, useLoad } from '../ui.js';

/** Entries of one group that are shown; actions on a group apply to all of them. */
const SHOWN_PER_GROUP = 20;

/** Most groups that are shown at once. */
const MAX_GROUPS = 9;

const CHANGES = new Set(['dead', 'uncertain', 'marked', 'claimed', 'completed', 'moved', 'verdict', 'email_task', 'sent', 'failed']);

/** @typedef {{kind: string, id: string, workspace?: string, state: string, cause: string, what: string, at?: string, tunnel?: string, evidence?: any, attempts?: number}} DeadEntry */

/**
 * All dead letters in one list.
 * @param {any} dead
 * @returns {DeadEntry[]}
 */
export function deadEntries(dead) {
  return [
    ...dead.claims.map((/** @type {any} */ it) => ({ kind: 'claim', id: it.id, workspace: it.workspace, state: it.status, cause: it.reason ?? '', what: it.workspace, at: it.updated_at, attempts: it.attempts })),
    ...dead.deliveries.map((/** @type {any} */ it) => ({ kind: 'delivery', id: it.record_id, state: it.state, cause: failureText(it.delivery), what: didName(it.delivery?.target ?? ''), at: it.updated_at, tunnel: it.owner, evidence: it.delivery, attempts: it.attempts })),
    ...dead.letters.map((/** @type {any} */ it) => ({ kind: 'letter', id: it.id, state: it.state, cause: it.failure ?? '', what: [it.subject, it.to?.[0]].filter(Boolean).join(' → '), at: it.updated_at, tunnel: it.tunnel, attempts: it.attempts })),
    ...dead.drafts.map((/** @type {any} */ it) => ({ kind: 'draft', id: it.id, state: 'DEAD', cause: it.reason ?? '', what: it.provider })),
    ...(dead.tasks ?? []).map((/** @type {any} */ it) => ({ kind: 'task', id: it.id, state: 'DEAD', cause: it.error ?? '', what: it.subject ?? '', at: it.updated_at, tunnel: it.account, attempts: it.attempts })),
  ];
}

/** @param {any} delivery */
function failureText(delivery) {
  const failure = delivery?.failure;
  return failure ? [failure.error_code, failure.detail].filter(Boolean).join(': ') : '';
}

/** Causes that differ only in numbers and ids are one cause. @param {string} cause */
const normalized = (cause) => cause.replace(/[0-9a-f]{8,}|\d+/gi, '#').slice(0, 200);

/** @param {DeadEntry} entry @param {'retry' | 'drop'} action */
function perform({ kind, id, workspace }, action) {
  if (kind === 'claim') return post(apiPath(['messages', id, action]), { workspace });
  if (kind === 'letter') return post(apiPath(['letters', id, action === 'retry' ? 'retry' : 'trash']));
  if (kind === 'draft') return post(apiPath(['drafts', id, action]));
  if (kind === 'task') return post(apiPath(['email', 'tasks', id, action]));
  return post(apiPath(['records', id, 'state']), { state: action === 'retry' ? 'WAIT' : 'ARCHIVED' });
}

/** @param {{entry: DeadEntry, done: () => void}} props */
function Entry({ entry, done }) {
  return html`<li class="row plain dead">
    <${State} of=${entry.state} />
    <span class="who">${wireText('kind', entry.kind)} <${Id} id=${entry.id} /></span>
    <a class="what" href=${link('trace', entry.id)}><${Foreign}>${entry.what || entry.id}<//></a>
    <span class="when">${entry.attempts ? t('attempts', { n: entry.attempts }) : ''} <${Time} at=${entry.at} /></span>
    <span class="actions">
      <button onClick=${() => act(() => perform(entry, 'retry'), t('retried', { n: 1 })).then(done)}>${t('retry')}</button>
      <button onClick=${() => act(() => perform(entry, 'drop'), t('dropped', { n: 1 })).then(done)}>${t('drop')}</button>
    </span>
  </li>`;
}

/** What is known about a delivery that may have arrived. @param {{entry: DeadEntry}} props */
function Evidence({ entry }) {
  const { evidence } = entry;
  if (entry.state !== 'UNCERTAIN' || !evidence) return null;
  return html`<p class="quiet evidence">${t('evidence')} <${Foreign}>${entry.cause}<//>
    ${evidence.external_msg_id && html` · <code>${evidence.external_msg_id}</code>`}
    ${evidence.first_try_at && html` · ${t('first_try')} <${Time} at=${evidence.first_try_at} />`}</p>`;
}

/** @param {{route: import('../route.js').Route}} props */
export default function Dead({ route }) {
  const { value, error, reload } = useLoad(() => get(apiPath(['dead'])), []);
  const [asked, setAsked] = useState(/** @type {{entries: DeadEntry[], action: 'retry' | 'drop'} | null} */ (null));
  useEvents((events) => events.some((event) => CHANGES.has(event.kind)) && reload());
  if (error && !value) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!value) return html`<${Loading} />`;
  const kind = route.query.get('kind') ?? '';
  const entries = deadEntries(value).filter((entry) => !kind || entry.kind === kind);
  /** @type {Map<string, DeadEntry[]>} */
  const groups = new Map();
  for (const entry of entries) {
    const key = `${entry.state === 'UNCERTAIN' ? 0 : 1} ${entry.kind} ${normalized(entry.cause)}`;
    groups.set(key, [...(groups.get(key) ?? []), entry]);
  }
  const sorted = [...groups].sort(([a, left], [b, right]) => a[0].localeCompare(b[0]) || right.length - left.length);
  const run = async () => {
    if (!asked) return;
    let count = 0;
    for (const entry of asked.entries) {
      if (!(await act(() => perform(entry, asked.action)))) break;
      count += 1;
    }
    if (count === asked.entries.length) notify(t(asked.action === 'retry' ? 'retried' : 'dropped', { n: count }));
    reload();
  };
  return html`<section class="view">
    <h1>${t('view_dead')}</h1>
    <div class="filters"><${Choice} label=${t('kind')} value=${kind} onChange=${(/** @type {string} */ next) => setFilters({ kind: next })}
      options=${[['', t('all')], ...['claim', 'delivery', 'letter', 'draft', 'task'].map((it) => [it, wireText('kind', it)])]} /></div>
    ${entries.length === 0 && html`<${Empty} title=${t('no_dead')}>${t('no_dead_hint')}<//>`}
    ${sorted.slice(0, MAX_GROUPS).map(([key, group]) => html`<section class="group ${group[0].state === 'UNCERTAIN' ? 'uncertain' : ''}" key=${key}>
      <header><h2><${Foreign}>${group[0].cause || t('no_cause')}<//> <span class="count">${group.length}</span></h2>
        <span class="actions">
          <button onClick=${() => setAsked({ entries: group, action: 'retry' })}>${t('retry_all', { n: group.length })}</button>
          <button onClick=${() => setAsked({ entries: group, action: 'drop' })}>${t('drop_all', { n: group.length })}</button>
        </span></header>
      ${group[0].state === 'UNCERTAIN' && html`<p class="warning">${t('uncertain_hint')}</p>`}
      <ul class="rows">${group.slice(0, SHOWN_PER_GROUP).map((entry) => html`<${Entry} key=${entry.kind + entry.id + entry.workspace} entry=${entry} done=${reload} /><${Evidence} entry=${entry} />`)}</ul>
      ${group.length > SHOWN_PER_GROUP && html`<p class="quiet">${t('and_more', { n: group.length - SHOWN_PER_GROUP })}</p>`}
    </section>`)}
    ${sorted.length > MAX_GROUPS && html`<p class="quiet">${t('more_causes', { n: sorted.length - MAX_GROUPS })}</p>`}
    ${asked && html`<${Confirm} title=${t(asked.action === 'retry' ? 'retry_all' : 'drop_all', { n: asked.entries.length })}
        confirm=${t(asked.action === 'retry' ? 'retry' : 'drop')} onConfirm=${run} onClose=${() => setAsked(null)}>
      <p><${Foreign}>${asked.entries[0].cause || t('no_cause')}<//></p>
      ${asked.entries[0].state === 'UNCERTAIN' && asked.action === 'retry' && html`<p class="warning">${t('uncertain_hint')}</p>`}
    <//>`}
  </section>`;
}
