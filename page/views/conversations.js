// Conversations: the messages of one owner with one other party or group, in both directions.

import { html } from '../html.js';
import { apiPath, get, post } from '../api.js';
import { t } from '../language.js';
import { go, link, setFilters } from '../route.js';
import { useEvents } from '../stream.js';
import { useKeys } from '../keys.js';
import { Did, didName, Empty, Failure, Foreign, ForeignText, Loading, Pages, State, Time, useCursor, useLoad } from '../ui.js';
import { ReplyBox } from './mail.js';

const PAGE_SIZE = 50;
const CHANGES = new Set(['dispatched', 'posted', 'sent', 'failed', 'dead', 'uncertain', 'sending', 'marked', 'edited', 'recalled']);

/** The row that was opened last: the cursor returns to it. */
let opened = '';

async function loadOwners() {
  const { boxes } = await get(apiPath(['boxes'], { limit: 500 }));
  const readable = boxes.filter((/** @type {any} */ box) => ['INBOX', 'OUTBOX', 'GROUP_INBOX'].includes(box.box));
  return /** @type {string[]} */ ([...new Set(readable.map((/** @type {any} */ box) => box.owner))]).slice(0, 200);
}

/** @param {{route: import('../route.js').Route}} props */
export default function Conversations({ route }) {
  const owners = useLoad(loadOwners, []);
  if (owners.error) return html`<${Failure} error=${owners.error} retry=${owners.reload} />`;
  if (!owners.value) return html`<${Loading} />`;
  const owner = route.query.get('owner') || owners.value[0];
  if (!owner) return html`<section class="view"><h1>${t('view_conversations')}</h1><${Empty} title=${t('no_conversations')} command="monoco sim">${t('no_conversations_hint')}<//></section>`;
  if (route.id) return html`<${Conversation} id=${route.id} owner=${owner} cursor=${route.query.get('cursor') ?? ''} />`;
  return html`<section class="view"><h1>${t('view_conversations')}</h1>
    <div class="filters"><label class="fields"><span>${t('owner')}</span>
      <select onChange=${(/** @type {any} */ event) => setFilters({ owner: event.target.value, cursor: '' })}>
        ${owners.value.map((did) => html`<option key=${did} value=${did} selected=${did === owner}>${didName(did)}</option>`)}
      </select></label></div>
    <${Sessions} owner=${owner} cursor=${route.query.get('cursor') ?? ''} />
  </section>`;
}

/** @param {{owner: string, cursor: string}} props */
function Sessions({ owner, cursor }) {
  const { value, error, reload } = useLoad(() => get(apiPath(['sessions'], { owner, cursor, limit: PAGE_SIZE })), [owner, cursor]);
  useEvents((events) => events.some((event) => CHANGES.has(event.kind)) && reload());
  /** @type {any[]} */
  const rows = value?.sessions ?? [];
  /** @param {any} session */
  const open = (session) => {
    opened = session.id;
    go(link('conversations', session.id, { owner }));
  };
  const { current, setCurrent, list } = useCursor({ rows, idOf: (session) => session.id, open, start: opened });
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!value) return html`<${Loading} />`;
  if (rows.length === 0) return html`<${Empty} title=${t('no_conversations')}>${t('no_conversations_hint')}<//>`;
  return html`<ul class="rows" ref=${list} aria-label=${t('view_conversations')}>${rows.map((session) => html`<li class="row plain ${session.id === current ? 'current' : ''}"
      key=${session.id} data-id=${session.id} tabindex="0" onFocus=${() => setCurrent(session.id)} onClick=${() => open(session)}>
    <span class="who">${session.name ? html`<${Foreign} title=${session.id}>${session.name}<//>` : html`<${Did} did=${session.id} />`} ${session.unread > 0 && html`<span class="count">${session.unread}</span>`}</span>
    <a class="what" tabindex="-1" href=${link('conversations', session.id, { owner })}><span class="quiet">${session.last?.direction === 'out' ? '→ ' : ''}</span><${Foreign}>${session.last?.msg?.content?.content ?? ''}<//></a>
    <span class="when"><${Time} at=${session.last?.record?.created_at} /></span>
  </li>`)}</ul>
  <${Pages} cursor=${cursor} next=${value.next_cursor} onMove=${(/** @type {string} */ next) => setFilters({ cursor: next })} />`;
}

/** @param {{id: string, owner: string, cursor: string}} props */
function Conversation({ id, owner, cursor }) {
  const { value, error, reload } = useLoad(() => get(apiPath(['sessions', id], { owner, cursor, limit: PAGE_SIZE })), [id, owner, cursor]);
  useEvents((events) => events.some((event) => CHANGES.has(event.kind)) && reload());
  const back = () => go(link('conversations', '', { owner }));
  useKeys({ Escape: back, r: () => document.getElementById('reply')?.focus() });
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!value) return html`<${Loading} />`;
  const lines = [...value.lines].reverse();
  /** @param {string} text @param {string} key */
  const send = (text, key) => post(apiPath(['post_send']), { idempotency_key: key,
    msg: { from: owner, to: [id], kind: 'chat', content: { content: text, format: 'text/markdown' }, nonce: Date.now() } });
  return html`<article class="view mail">
    <p class="back"><button class="plain" onClick=${back}>← ${t('back')} <kbd>Esc</kbd></button></p>
    <h1><${Did} did=${id} /></h1>
    <p class="quiet"><code>${id}</code></p>
    <${Pages} cursor=${cursor} next=${value.next_cursor} onMove=${(/** @type {string} */ next) => setFilters({ cursor: next })} />
    <ol class="chat">${lines.map(({ record, msg, direction, delivery_state: sent }) => html`<li key=${record.record_id} class=${direction}>
      <p class="message-head"><${Did} did=${msg?.source ?? msg?.from} /> <${Time} at=${record.created_at} />
        <${State} of=${sent ?? record.state} /> <a href=${link('trace', record.msg_id)}>${t('view_trace')}</a></p>
      <${ForeignText} text=${msg?.content?.content ?? t('erased')} />
    </li>`)}</ol>
    <${ReplyBox} target=${id} focus=${false} send=${send} onSent=${reload} />
  </article>`;
}
