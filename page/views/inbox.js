// Inbox: Mails with sender, trust, preview and claim; filters in the address; saved views.

import { html, useEffect, useState } from '../html.js';
import { apiPath, get, post } from '../api.js';
import { t } from '../language.js';
import { go, link, setFilters } from '../route.js';
import { useEvents } from '../stream.js';
import { useKeys } from '../keys.js';
import { claimMail, finishMail } from '../claims.js';
import { act, Choice, Did, Empty, Failure, Foreign, Loading, notify, Pages, State, Time, useCursor, useLoad } from '../ui.js';

/** Mails of one page: each is one row of the document. */
const PAGE_SIZE = 50;

/** Events that change the claim of a Mail. */
const CLAIM_EVENTS = new Set(['claimed', 'renewed', 'completed', 'failed', 'lease_ended', 'dead', 'moved', 'expired', 'marked']);

/** The row that was opened last: the cursor returns to it. */
let opened = '';

/** @param {import('#api').Participant[]} people */
const names = (people) => people.map((person) => person.name || person.id).join(', ');

/** @typedef {import('#api').Mail} Mail */

/**
 * Mails with their claims in the chosen workspace.
 * @param {URLSearchParams} query
 * @returns {Promise<import('#api').Mails>}
 */
const loadMails = (query) => get(apiPath(['messages'], {
  workspace: query.get('workspace') || 'shared', status: query.get('status'), provider: query.get('provider'),
  since: query.get('since'), q: query.get('q'), cursor: query.get('cursor'), limit: PAGE_SIZE,
  unrouted: query.get('view') === 'unrouted' ? 'true' : '',
}));

/** Messages of strangers that wait in REQUEST_BOX of any owner. */
async function loadRequests() {
  const { boxes } = await get(apiPath(['boxes'], { limit: 200 }));
  const waiting = boxes.filter((/** @type {any} */ box) => box.box === 'REQUEST_BOX');
  const pages = await Promise.all(waiting.slice(0, 20).map(async (/** @type {any} */ box) => {
    const { records } = await get(apiPath(['boxes', box.owner, box.box], { limit: PAGE_SIZE, state: 'UNREAD,READING' }));
    return records;
  }));
  const records = pages.flat().slice(0, PAGE_SIZE);
  return Promise.all(records.map(async (record) => ({ record, msg: await get(apiPath(['objects', record.msg_id])).catch(() => null) })));
}

/** Lists beside those by status: Mails that no workspace has, and messages of strangers. */
const VIEWS = ['unrouted', 'requests'];

/** Names of filters that belong to a saved view. */
const SAVED_FILTERS = ['status', 'provider', 'since', 'workspace', 'q', 'view'];

/** @returns {Record<string, string>} */
function readSaved() {
  try {
    return JSON.parse(localStorage.getItem('saved_views') ?? '{}');
  } catch {
    return {};
  }
}

/** @param {{query: URLSearchParams}} props */
function SavedViews({ query }) {
  const [saved, setSaved] = useState(readSaved);
  /** @param {Record<string, string>} next */
  const store = (next) => {
    localStorage.setItem('saved_views', JSON.stringify(next));
    setSaved(next);
  };
  const filters = Object.fromEntries(SAVED_FILTERS.map((name) => [name, query.get(name) ?? '']));
  const address = link('inbox', '', filters);
  const isFiltered = Object.values(filters).some(Boolean);
  const isSaved = Object.values(saved).includes(address);
  const save = () => {
    const name = SAVED_FILTERS.map((key) => filters[key]).filter(Boolean).join(' · ').slice(0, 60);
    store({ ...saved, [name]: address });
    notify(t('view_saved', { name }));
  };
  return html`<div class="saved">
    ${Object.entries(saved).map(([name, target]) => html`<span class="chip" key=${name}>
      <a href=${target} aria-current=${target === address ? 'true' : undefined}><${Foreign}>${name}<//></a>
      <button aria-label=${t('forget_view', { name })} onClick=${() => {
        const { [name]: _, ...rest } = saved;
        store(rest);
      }}>×</button>
    </span>`)}
    ${isFiltered && !isSaved && html`<button class="plain" onClick=${save}>${t('save_view')}</button>`}
  </div>`;
}

/** @param {{query: URLSearchParams}} props */
function Filters({ query }) {
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    const data = new FormData(/** @type {HTMLFormElement} */ (event.target));
    setFilters({ q: String(data.get('q')), workspace: String(data.get('workspace')), provider: String(data.get('provider')), cursor: '', view: data.get('q') ? '' : view });
  };
  const view = query.get('view') ?? '';
  const status = view || (query.get('status') ?? '');
  return html`<form class="filters" onSubmit=${submit} role="search">
    <${Choice} label=${t('filter_status')} value=${status} onChange=${(/** @type {string} */ value) =>
      setFilters(VIEWS.includes(value) ? { view: value, status: '', q: '', cursor: '' } : { status: value, view: '', cursor: '' })}
      options=${[['', t('all')], ['NEW', t('state_NEW')], ['CLAIMED', t('state_CLAIMED')], ['COMPLETED', t('state_COMPLETED')],
        ['DEADLETTER', t('state_DEADLETTER')], ['unrouted', t('unrouted')], ['requests', t('requests')]]} />
    <div class="fields">
      <label class="grow"><span class="hidden">${t('search')}</span>
        <input id="search" name="q" type="search" placeholder=${t('search')} value=${query.get('q') ?? ''} /></label>
      <label><span class="hidden">${t('provider')}</span>
        <select name="provider" onChange=${(/** @type {any} */ event) => setFilters({ provider: event.target.value, cursor: '' })}>
          <option value="">${t('all_providers')}</option>
          ${['dingtalk', 'email', 'lark', 'slack', 'telegram', 'webhook'].map((name) =>
            html`<option key=${name} value=${name} selected=${query.get('provider') === name}>${name}</option>`)}
        </select></label>
      <label><span class="hidden">${t('workspace')}</span>
        <input name="workspace" class="narrow" onChange=${(/** @type {any} */ event) => setFilters({ workspace: event.target.value, cursor: '' })} placeholder=${t('workspace_shared')} value=${query.get('workspace') ?? ''} /></label>
      <button class="hidden">${t('apply')}</button>
    </div>
  </form>`;
}

/**
 * The preview without the headings of its messages: authors and time have columns of their own.
 * @param {string} preview
 */
const withoutHeadings = (preview) => preview.replace(/\*\*[^*]{1,200}\*\* · \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*/g, '')
  // The last heading may be cut.
  .replace(/\s*\*\*[^*]{1,200}\*\* · [\d: -]{0,19}…?$/, '…');

/** @param {{mail: Mail}} props */
function Claim({ mail }) {
  const { claim, status } = mail;
  return html`<span class="claim"><${State} of=${status} />
    ${claim?.agent_id && html`<${Foreign} class="holder">${claim.agent_id}<//>`}</span>`;
}

/** @param {{mail: Mail, selected: boolean, current: boolean, onFocus: () => void, onSelect: () => void, open: () => void}} props */
function Row({ mail, selected, current, onFocus, onSelect, open }) {
  const { session, participants } = mail;
  return html`<li class="row ${mail.status !== 'NEW' ? 'seen' : ''} ${current ? 'current' : ''}" data-id=${mail.id} tabindex="0"
      onFocus=${onFocus} onClick=${(/** @type {any} */ event) => event.target.closest('input, a') || open()}>
    <input type="checkbox" tabindex="-1" checked=${selected} onChange=${onSelect} aria-label=${t('select_mail', { name: names(participants.from) })} />
    <span class="who"><${Foreign} class="name">${names(participants.from)}<//>
      ${mail.trust !== 'known' && html`<span class="badge trust" title=${t('untrusted_hint')}>${t('untrusted')}</span>`}</span>
    <span class="where"><${Foreign}>${session.name || session.id}<//> <span class="quiet">${mail.tunnel}</span></span>
    <a class="what" href=${link('mail', mail.id)} tabindex="-1">${mail.title && html`<${Foreign} class="title">${mail.title}<//> `}
      <${Foreign}>${withoutHeadings(mail.preview)}<//>${mail.messages > 1 && html` <span class="count">${mail.messages}</span>`}</a>
    <${Claim} mail=${mail} />
    <span class="when"><${Time} at=${mail.received_at} /></span>
  </li>`;
}

/** @param {{route: import('../route.js').Route}} props */
export default function Inbox({ route }) {
  return html`<section class="view">
    <h1>${t('view_inbox')}</h1>
    <${SavedViews} query=${route.query} />
    <${Filters} key=${route.query.toString()} query=${route.query} />
    ${route.query.get('view') === 'requests' ? html`<${Requests} />` : html`<${Mails} query=${route.query} />`}
  </section>`;
}

/** @param {{query: URLSearchParams}} props */
function Mails({ query }) {
  const workspace = query.get('workspace') || 'shared';
  const cursor = query.get('cursor') ?? '';
  const { value, error, reload } = useLoad(() => loadMails(query), [query.toString()]);
  const [shown, setShown] = useState(/** @type {import('#api').Mails | null} */ (null));
  const [fresh, setFresh] = useState(/** @type {string[]} */ ([]));
  const [selected, setSelected] = useState(/** @type {string[]} */ ([]));
  useEffect(() => {
    setShown(value);
    setFresh([]);
  }, [value]);
  const rows = shown?.messages ?? [];
  /** @param {Mail} mail */
  const open = (mail) => {
    opened = mail.id;
    go(link('mail', mail.id, { workspace: query.get('workspace') ?? '' }));
  };
  /** @param {Mail[]} mails @param {(mail: Mail) => Promise<unknown>} step @param {string} done */
  const each = async (mails, step, done) => {
    for (const mail of mails) if (!(await act(() => step(mail), done))) break;
    setSelected([]);
    refresh();
  };
  /** The selected Mails, or the one with the cursor. @param {Mail} [row] */
  const targets = (row) => (selected.length > 0 || !row ? rows.filter((mail) => selected.includes(mail.id)) : [row]);
  /** @param {Mail} mail */
  const toggle = (mail) => setSelected((ids) => (ids.includes(mail.id) ? ids.filter((id) => id !== mail.id) : [...ids, mail.id]));
  const { current, setCurrent, list } = useCursor({
    rows, idOf: (mail) => mail.id, open, start: opened,
    keys: (row) => ({
      c: () => each(targets(row), (mail) => claimMail(mail.id, workspace), t('claimed')),
      e: () => each(targets(row), (mail) => finishMail(mail, workspace), t('completed')),
      r: () => {
        opened = row.id;
        go(link('mail', row.id, { reply: '1', workspace: query.get('workspace') ?? '' }));
      },
      x: () => toggle(row),
    }),
  });

  /** Updates the rows in place; none moves, appears or disappears. */
  const refresh = async () => {
    const next = await loadMails(query).catch(() => null);
    if (!next) return;
    const byId = new Map(next.messages.map((mail) => [mail.id, mail]));
    // A row that the filter excludes now keeps its place until the list is loaded again.
    const gone = rows.filter((mail) => !byId.has(mail.id)).map((mail) => mail.id);
    const claims = gone.length > 0 ? (await post(apiPath(['messages', 'status']), { ids: gone, workspace }).catch(() => ({ claims: [] }))).claims : [];
    const claimOf = new Map(claims.map((/** @type {any} */ claim) => [claim.id, claim]));
    setShown((old) => old && { ...old, messages: old.messages.map((mail) => {
      const claim = /** @type {any} */ (claimOf.get(mail.id));
      return byId.get(mail.id) ?? (claim ? { ...mail, claim, status: claim.status } : mail);
    }) });
    setFresh(next.messages.map((mail) => mail.id).filter((id) =>
      !rows.some((mail) => mail.id === id)));
  };
  // Nothing is under the cursor or the pointer: then new rows may appear at once.
  const mayInsert = () => !current && selected.length === 0 && scrollY < 40 && !list.current?.matches(':hover');
  useEvents((events) => {
    const isNew = events.some((event) => event.kind === 'merged' || event.kind === 'restored') && !cursor;
    if (isNew && (rows.length === 0 || mayInsert())) reload();
    else if (isNew || events.some((event) => CLAIM_EVENTS.has(event.kind))) refresh();
  });
  useKeys({ n: () => fresh.length > 0 && reload(), Escape: () => (selected.length > 0 ? setSelected([]) : setCurrent('')) });

  if (error && !shown) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!shown) return html`<${Loading} />`;
  const isFiltered = [...query.keys()].some((name) => name !== 'cursor');
  return html`<${Failure} error=${error} retry=${reload} />
    <div class="bar">
      ${fresh.length > 0 && html`<button class="fresh" onClick=${reload}>${t('new_rows', { n: fresh.length })}</button>`}
      ${selected.length > 0 && html`<div class="selection" role="group" aria-label=${t('selected', { n: selected.length })}>
        <span>${t('selected', { n: selected.length })}</span>
        <button onClick=${() => each(targets(), (mail) => claimMail(mail.id, workspace), t('claimed'))}>${t('claim')}</button>
        <button onClick=${() => each(targets(), (mail) => finishMail(mail, workspace), t('completed'))}>${t('done')}</button>
        <button onClick=${() => setSelected([])}>${t('cancel')}</button>
      </div>`}
    </div>
    ${query.get('view') === 'unrouted' && rows.length > 0 && html`<p class="quiet">${t('unrouted_hint')}</p>`}
    ${rows.length === 0
      ? html`<${NoMails} isFiltered=${isFiltered} isUnrouted=${query.get('view') === 'unrouted'} hasMore=${Boolean(shown.next_cursor)} />`
      : html`<ul class="rows mails" ref=${list} aria-label=${t('view_inbox')}>
        ${rows.map((mail) => html`<${Row} key=${mail.id} mail=${mail} current=${mail.id === current}
          selected=${selected.includes(mail.id)} onFocus=${() => setCurrent(mail.id)} onSelect=${() => toggle(mail)} open=${() => open(mail)} />`)}
      </ul>`}
    <${Pages} cursor=${cursor} next=${shown.next_cursor} onMove=${(/** @type {string} */ next) => setFilters({ cursor: next })} />`;
}

/** @param {{isFiltered: boolean, isUnrouted: boolean, hasMore: boolean}} props */
function NoMails({ isFiltered, isUnrouted, hasMore }) {
  const { value } = useLoad(() => get(apiPath(['tunnels'])), []);
  if (isUnrouted) return html`<${Empty} title=${t('no_unrouted')}>${t(hasMore ? 'search_continue' : 'no_unrouted_hint')}<//>`;
  if (isFiltered) return html`<${Empty} title=${t('nothing_found')}><a href=${link('inbox')}>${t('show_all')}</a><//>`;
  if (value?.tunnels.length === 0) return html`<${Empty} title=${t('no_tunnel')} command="monoco tunnel add">${t('no_tunnel_hint')}<//>`;
  return html`<${Empty} title=${t('inbox_empty')} command="monoco sim">${t('inbox_empty_hint')}<//>`;
}

/** Messages of unknown senders that a tunnel holds back. */
function Requests() {
  const { value, error, reload } = useLoad(loadRequests, []);
  useEvents((events) => events.some((event) => event.kind === 'dispatched' || event.kind === 'marked') && reload());
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!value) return html`<${Loading} />`;
  if (value.length === 0) return html`<${Empty} title=${t('no_requests')}>${t('no_requests_hint')}<//>`;
  return html`<ul class="rows">${value.map(({ record, msg }) => html`<li class="row plain" key=${record.record_id}>
    <span class="who"><${Did} did=${msg?.source ?? msg?.from} /></span>
    <a class="what" href=${link('trace', record.msg_id)}><${Foreign}>${msg?.content?.content ?? record.msg_id}<//></a>
    <span class="actions">
      <button onClick=${() => act(() => post(apiPath(['records', record.record_id, 'state']), { state: 'READED', revision: record.revision }), t('marked_read')).then(reload)}>${t('mark_read')}</button>
    </span>
    <span class="when"><${Time} at=${record.created_at} /></span>
  </li>`)}</ul>`;
}
