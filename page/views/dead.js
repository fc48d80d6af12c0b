// Dead letters of all kinds, grouped by cause. UNCERTAIN deliveries are apart: they may have arrived.

import { html, useState } from '../html.js';
import { apiPath, get, post } from '../api.js';
import { t, wireText } from '../language.js';
import { link, setFilters } from '../route.js';
import { useEvents } from '../stream.js';
import { act, Choice, Confirm, didName, Empty, Foreign, Id, notify, Pending, State, Time, useLoad } from '../ui.js';

/** Entries of one group that are shown; the courier applies actions to all that match. */
const SHOWN_PER_GROUP = 20;

/** Most groups that are shown at once. */
const MAX_GROUPS = 9;

const CHANGES = new Set(['dead', 'uncertain', 'marked', 'claimed', 'completed', 'moved', 'verdict', 'email_task', 'sent', 'failed']);

/** @typedef {{kind: string, id: string, workspace?: string, state: string, cause: string, code?: string, what: string, at?: string, tunnel?: string, evidence?: any, attempts?: number}} DeadEntry */

/**
 * All dead letters in one list.
 * @param {import('#api').Dead} dead
 * @returns {DeadEntry[]}
 */
export function deadEntries(dead) {
  return [
    ...dead.claims.map((it) => ({ kind: 'claim', id: it.id, workspace: it.workspace, state: it.status, cause: it.reason ?? '', what: it.workspace, at: it.updated_at, attempts: it.attempts })),
    ...dead.deliveries.map((it) => ({ kind: 'delivery', id: it.record_id, state: it.state, cause: it.delivery?.failure?.detail ?? '', code: it.delivery?.failure?.error_code ?? '', what: didName(it.delivery?.target ?? ''), at: it.updated_at, tunnel: it.owner.replace(/^did:msgtunnel:/, ''), evidence: it.delivery, attempts: it.attempts })),
    ...dead.letters.map((it) => ({ kind: 'letter', id: it.id, state: it.state, cause: it.failure ?? '', what: [it.subject, it.to?.[0]].filter(Boolean).join(' → '), at: it.updated_at, tunnel: it.tunnel, attempts: it.attempts })),
    ...dead.drafts.map((it) => ({ kind: 'draft', id: it.id, state: 'DEAD', cause: it.reason ?? '', what: it.provider })),
    ...(dead.tasks ?? []).map((it) => ({ kind: 'task', id: it.id, state: 'DEAD', cause: it.error ?? '', what: it.subject ?? '', at: it.updated_at, tunnel: it.account, attempts: it.attempts })),
  ];
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

/**
 * Retries or drops all that the filter selects. The courier changes a bounded number in one request.
 * @param {Record<string, string>} filter
 * @param {'retry' | 'drop'} action
 */
async function changeAll(filter, action) {
  let count = 0;
  let result;
  do {
    result = /** @type {import('#api').DeadBatchResult} */ (await post(apiPath(['dead', action]), filter));
    count += result.changed;
    // What cannot be changed is selected again; then there is no progress.
  } while (result.more && result.changed > 0);
  if (result.failed > 0) throw new Error(t('dead_failed', { n: count, failed: result.failed, why: Object.values(result.errors)[0] ?? '' }));
  notify(t(action === 'retry' ? 'retried' : 'dropped', { n: count }));
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
    <${Evidence} entry=${entry} />
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

/** Retry and drop all that a filter selects. @param {{filter: Record<string, string>, ask: (filter: Record<string, string>, action: 'retry' | 'drop') => void}} props */
const GroupActions = ({ filter, ask }) => html`<span class="actions">
  <button onClick=${() => ask(filter, 'retry')}>${t('retry_matching')}</button>
  <button onClick=${() => ask(filter, 'drop')}>${t('drop_matching')}</button>
</span>`;

/** @param {{route: import('../route.js').Route}} props */
export default function Dead({ route }) {
  const { value, error, reload } = useLoad(/** @returns {Promise<import('#api').Dead>} */ () => get(apiPath(['dead'])), []);
  const [asked, setAsked] = useState(/** @type {{filter: Record<string, string>, action: 'retry' | 'drop', count: number} | null} */ (null));
  useEvents((events) => events.some((event) => CHANGES.has(event.kind)) && reload());
  if (!value) return html`<${Pending} title=${t('view_dead')} error=${error} retry=${reload} />`;
  const kind = route.query.get('kind') ?? '';
  const tunnel = route.query.get('tunnel') ?? '';
  const all = deadEntries(value);
  const tunnels = [...new Set(all.map((entry) => entry.tunnel).filter(Boolean))].slice(0, 50);
  const entries = all.filter((entry) => (!kind || entry.kind === kind) && (!tunnel || entry.tunnel === tunnel));
  const filter = Object.fromEntries(Object.entries({ kind, tunnel }).filter(([, chosen]) => chosen));
  /** @type {Map<string, DeadEntry[]>} */
  const groups = new Map();
  for (const entry of entries) {
    const key = `${entry.state === 'UNCERTAIN' ? 0 : 1} ${entry.kind} ${normalized(entry.cause)}`;
    groups.set(key, [...(groups.get(key) ?? []), entry]);
  }
  const sorted = [...groups].sort(([a, left], [b, right]) => a[0].localeCompare(b[0]) || right.length - left.length);
  /** Counts what the courier would change, and asks. @param {Record<string, string>} filter @param {'retry' | 'drop'} action */
  const ask = (filter, action) => act(async () => {
    const { matched } = await post(apiPath(['dead', action]), { ...filter, dry_run: true });
    setAsked({ filter, action, count: matched });
  });
  const run = () => asked && act(() => changeAll(asked.filter, asked.action)).then(reload);
  return html`<section class="view">
    <h1>${t('view_dead')}</h1>
    <div class="filters"><${Choice} label=${t('kind')} value=${kind} onChange=${(/** @type {string} */ next) => setFilters({ kind: next })}
      options=${[['', t('all')], ...['claim', 'delivery', 'letter', 'draft', 'task'].map((it) => [it, wireText('kind', it)])]} />
      ${tunnels.length > 0 && html`<label><span class="hidden">${t('tunnel')}</span><select onChange=${(/** @type {any} */ event) => setFilters({ tunnel: event.target.value })}>
        <option value="">${t('all_tunnels')}</option>${tunnels.map((it) => html`<option key=${it} value=${it} selected=${it === tunnel}>${it}</option>`)}</select></label>`}
      ${(kind || tunnel) && entries.length > 0 && html`<${GroupActions} filter=${filter} ask=${ask} />`}</div>
    ${entries.length === 0 && html`<${Empty} title=${t('no_dead')}>${t('no_dead_hint')}<//>`}
    ${sorted.slice(0, MAX_GROUPS).map(([key, group]) => html`<section class="group ${group[0].state === 'UNCERTAIN' ? 'uncertain' : ''}" key=${key}>
      <header><h2><${Foreign}>${[group[0].code, group[0].cause].filter(Boolean).join(': ') || t('no_cause')}<//> <span class="count">${group.length}</span></h2>
        <${GroupActions} filter=${{ kind: group[0].kind, state: group[0].state, cause: group[0].cause }} ask=${ask} /></header>
      ${group[0].state === 'UNCERTAIN' && html`<p class="warning">${t('uncertain_hint')}</p>`}
      <ul class="rows">${group.slice(0, SHOWN_PER_GROUP).map((entry) => html`<${Entry} key=${entry.kind + entry.id + entry.workspace} entry=${entry} done=${reload} />`)}</ul>
      ${group.length > SHOWN_PER_GROUP && html`<p class="quiet">${t('and_more', { n: group.length - SHOWN_PER_GROUP })}</p>`}
    </section>`)}
    ${sorted.length > MAX_GROUPS && html`<p class="quiet">${t('more_causes', { n: sorted.length - MAX_GROUPS })}</p>`}
    ${asked && html`<${Confirm} title=${t(asked.action === 'retry' ? 'retry_all' : 'drop_all', { n: asked.count })}
        confirm=${t(asked.action === 'retry' ? 'retry' : 'drop')} onConfirm=${run} onClose=${() => setAsked(null)}>
      <p>${t('dead_count', { n: asked.count })}</p>
      <p><${Foreign}>${Object.values(asked.filter).filter(Boolean).join(' · ')}<//></p>
      ${asked.filter.state === 'UNCERTAIN' && asked.action === 'retry' && html`<p class="warning">${t('uncertain_hint')}</p>`}
    <//>`}
  </section>`;
}
