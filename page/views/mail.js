// One Mail: its messages as safe text, attachments, claims with their leases, replies.

import { html, useEffect, useRef, useState } from '../html.js';
import { apiPath, courierNow, get, post } from '../api.js';
import { duration, t } from '../language.js';
import { go, link, setFilters } from '../route.js';
import { useEvents } from '../stream.js';
import { useKeys } from '../keys.js';
import { AGENT, claimMail, failClaim, finishMail, newKey, renewClaim } from '../claims.js';
import { mailRules, RuleDialog } from '../rules.js';
import { act, Choice, Did, didName, Empty, Failure, Foreign, ForeignText, Id, Pending, State, Time, useLoad } from '../ui.js';

/** Messages of a Mail that are shown at once; a Mail can have 10,000. */
const MESSAGES_AT_ONCE = 50;

/** Replies that are shown: the newest ones. */
const MAX_REPLIES = 20;

/** Height of the frame for formatted text: the page cannot measure inside its sandbox. */
const FRAME_LINE_PX = 24;
const FRAME_CHARS = 90;

/** @param {string} text */
function frameHeight(text) {
  const lines = text.split('\n', 400).reduce((sum, line) => sum + 1 + Math.floor(line.length / FRAME_CHARS), 3);
  return Math.min(Math.max(lines * FRAME_LINE_PX, 120), 900);
}

/** @param {string} id */
async function loadMail(id) {
  const [mail, trace] = await Promise.all([
    get(apiPath(['messages', id])),
    get(apiPath(['messages', id, 'trace'])).catch(() => null),
  ]);
  return { mail, trace };
}

/**
 * Replies to the Mail: messages of the conversation that name it.
 * @param {any} mail
 */
async function loadReplies(mail) {
  const target = mail.msg?.content?.machine?.data?.mail?.answer_to;
  if (!target) return [];
  const { boxes } = await get(apiPath(['boxes'], { limit: 200 }));
  const owners = [...new Set(boxes.filter((/** @type {any} */ box) => box.box === 'OUTBOX').map((/** @type {any} */ box) => box.owner))];
  const pages = await Promise.all(owners.slice(0, 5).map((owner) =>
    get(apiPath(['sessions', target], { owner, limit: 50 })).catch(() => ({ lines: [] }))));
  return pages.flatMap((page) => page.lines)
    .filter((line) => line.direction === 'out' && line.msg?.thread?.reply_to === mail.msg_id)
    .slice(0, MAX_REPLIES);
}

/** @param {{claim: any, onChange: () => void}} props */
function Claim({ claim, onChange }) {
  const [, tick] = useState(0);
  const isHeld = claim.status === 'CLAIMED';
  useEffect(() => {
    if (!isHeld) return undefined;
    const timer = setInterval(() => tick((count) => count + 1), 1000);
    return () => clearInterval(timer);
  }, [isHeld]);
  const left = isHeld ? Date.parse(claim.expires_at) - courierNow() : 0;
  const isOurs = isHeld && claim.agent_id === AGENT;
  return html`<li class="fact">
    <span><${Foreign}>${claim.workspace}<//></span> <${State} of=${claim.status} />
    ${isHeld && html`<span><${Foreign}>${claim.agent_id}<//> · ${left > 0 ? t('lease_left', { time: duration(Math.ceil(left / 1000) * 1000) }) : t('lease_over')}</span>`}
    ${claim.reason && html`<span class="quiet"><${Foreign}>${claim.reason}<//></span>`}
    ${claim.next_retry_at && html`<span class="quiet">${t('next_retry')} <${Time} at=${claim.next_retry_at} /></span>`}
    ${isOurs && html`<button onClick=${() => act(() => renewClaim(claim), t('renewed')).then(onChange)}>${t('renew')}</button>`}
  </li>`;
}

/** @param {{messages: any[]}} props */
function Messages({ messages }) {
  const [first, setFirst] = useState(0);
  const shown = messages.slice(first, first + MESSAGES_AT_ONCE);
  return html`<ol class="messages" start=${first + 1}>
    ${shown.map((message, index) => html`<li key=${first + index}>
      <p class="message-head"><${Foreign} class="title" title=${message.from?.id}>${message.from?.name || message.from?.id || ''}<//>
        <${Time} at=${message.at ?? message.received_at} /></p>
      <${ForeignText} text=${message.text ?? ''} />
      <${Attachments} files=${message.artifacts ?? []} />
    </li>`)}
  </ol>
  ${messages.length > MESSAGES_AT_ONCE && html`<nav class="pages" aria-label=${t('pages')}>
    <span class="quiet">${t('range', { first: first + 1, last: first + shown.length, all: messages.length })}</span>
    ${first > 0 && html`<button onClick=${() => setFirst(Math.max(0, first - MESSAGES_AT_ONCE))}>${t('earlier')}</button>`}
    ${first + MESSAGES_AT_ONCE < messages.length && html`<button onClick=${() => setFirst(first + MESSAGES_AT_ONCE)}>${t('later')}</button>`}
  </nav>`}`;
}

/** @param {{files: any[]}} props */
export function Attachments({ files }) {
  if (files.length === 0) return null;
  return html`<ul class="files" aria-label=${t('attachments')}>${files.slice(0, 50).map((file, index) => {
    const id = file.hash ?? '';
    const name = file.name ?? id;
    return html`<li key=${index}>${/^sha256:[0-9a-f]{64}$/.test(id)
      ? html`<a href=${apiPath(['objects', id])} download=${name.replace(/[^\p{L}\p{N}._ -]/gu, '_').slice(0, 100)}><${Foreign}>${name}<//></a>`
      : html`<${Foreign}>${name}<//>`} ${file.mime_type && html`<span class="quiet">${file.mime_type}</span>`}</li>`;
  })}</ul>`;
}

/**
 * The reply box names the exact target: there is no default chat and no guessing.
 * @param {{target: string, send: (text: string, key: string) => Promise<unknown>, focus: boolean, onSent: () => void}} props
 */
export function ReplyBox({ target, send, focus, onSent }) {
  const [text, setText] = useState('');
  const [isBusy, setBusy] = useState(false);
  const key = useRef(newKey());
  const input = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useEffect(() => {
    if (focus) input.current?.focus();
  }, [focus]);
  const submit = async () => {
    if (!text.trim() || isBusy) return;
    setBusy(true);
    // The key stays until the courier has answered: a second attempt is not a second message.
    if (await act(() => send(text, key.current), t('reply_queued'))) {
      key.current = newKey();
      setText('');
      onSent();
    }
    setBusy(false);
  };
  return html`<form class="reply" onSubmit=${(/** @type {Event} */ event) => {
    event.preventDefault();
    submit();
  }}>
    <label for="reply">${t('reply_to')} <strong><${Did} did=${target} /></strong> <span class="quiet"><${Foreign}>${target}<//></span></label>
    <textarea id="reply" ref=${input} rows="4" dir="auto" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)}
      onKeyDown=${(/** @type {KeyboardEvent} */ event) => {
        if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
          event.preventDefault();
          submit();
        }
      }}></textarea>
    <div class="actions"><button class="primary" disabled=${isBusy || !text.trim()}>${t('send')}</button> <span class="quiet">${t('send_key')}</span></div>
  </form>`;
}

/** @param {{lines: any[]}} props */
function Replies({ lines }) {
  if (lines.length === 0) return null;
  return html`<section><h2>${t('replies')}</h2><ul class="messages plain">${lines.map(({ record, msg, delivery_state: sent }) => html`<li key=${record.record_id}>
    <p class="message-head"><${State} of=${sent ?? record.state} /> <${Time} at=${record.created_at} />
      <a href=${link('trace', record.msg_id)}>${t('view_trace')}</a></p>
    <${ForeignText} text=${msg?.content?.content ?? ''} />
  </li>`)}</ul></section>`;
}

/** @param {{route: import('../route.js').Route}} props */
export default function Mail({ route }) {
  const { id, query } = route;
  const workspace = query.get('workspace') || 'shared';
  const { value, error, reload } = useLoad(() => loadMail(id), [id]);
  const mail = value?.mail;
  const replies = useLoad(async () => (mail ? loadReplies(mail) : []), [mail?.msg_id]);
  const [isRuleShown, showRule] = useState(false);
  const [focusReply, setFocusReply] = useState(query.get('reply') === '1');
  useEvents((events) => {
    if (!mail) return;
    if (events.some((event) => event.msg_id === mail.msg_id || event.detail?.mail === mail.id)) reload();
    if (events.some((event) => ['posted', 'sent', 'failed', 'dead', 'uncertain', 'sending'].includes(event.kind))) replies.reload();
  });
  const back = () => (history.length > 1 ? history.back() : go(link('inbox')));
  const claim = mail?.claims?.find((/** @type {any} */ it) => it.workspace === workspace);
  const isOurs = claim?.status === 'CLAIMED' && claim.agent_id === AGENT;
  const isOpen = !claim || claim.status === 'NEW';
  const doClaim = () => act(() => claimMail(id, workspace), t('claimed')).then(reload);
  const finish = () => act(() => finishMail(mail, workspace), t('completed')).then(reload);
  useKeys({
    Escape: back,
    ...(mail ? { c: doClaim, e: finish, r: () => {
      setFocusReply(false);
      setTimeout(() => setFocusReply(true));
    } } : {}),
  });
  if (error && !mail) {
    return html`<section class="view"><h1>${t('view_mail')}</h1>${/** @type {any} */ (error).status === 404
      ? html`<${Empty} title=${t('no_mail')}>${t('no_mail_hint')}<//>` : html`<${Failure} error=${error} retry=${reload} />`}</section>`;
  }
  if (!mail) return html`<${Pending} title=${t('view_mail')} error=${null} retry=${reload} />`;
  const data = mail.msg?.content?.machine?.data ?? {};
  const text = mail.msg?.content?.content ?? '';
  const target = data.mail?.answer_to;
  const title = mail.msg?.content?.title || mail.session.name || mail.session.id;
  const format = query.get('as') === 'formatted' ? 'formatted' : 'text';
  return html`<article class="view mail">
    <p class="back"><button class="plain" onClick=${back}>← ${t('back')} <kbd>Esc</kbd></button></p>
    <h1><${Foreign}>${title}<//></h1>
    <p class="facts">
      <span>${mail.participants.from.slice(0, 10).map((/** @type {any} */ person) => html`<${Foreign} class="title" title=${person.id}>${person.name || person.id}<//> `)}</span>
      <span>${mail.session.type} · <${Foreign}>${mail.session.name || mail.session.id}<//> · ${mail.tunnel}</span>
      <${Time} at=${mail.received_at} />
      ${mail.trust === 'known' ? html`<span class="badge good">${t('known')}</span>` : html`<span class="badge trust" title=${t('untrusted_hint')}>${t('untrusted')}</span>`}
    </p>
    <div class="actions toolbar">
      <button onClick=${doClaim} disabled=${!isOpen}>${t('claim')} <kbd>c</kbd></button>
      <button onClick=${finish} disabled=${!isOurs && !isOpen}>${t('done')} <kbd>e</kbd></button>
      <button onClick=${() => act(() => failClaim(claim, t('failed_on_page'), true), t('failed')).then(reload)} disabled=${!isOurs}>${t('fail')}</button>
      <a class="button" href=${link('trace', mail.id)}>${t('explain')}</a>
      <button onClick=${() => showRule(true)}>${t('make_rule')}</button>
      <${Choice} label=${t('format')} value=${format} onChange=${(/** @type {string} */ as) => setFilters({ as: as === 'text' ? '' : as })}
        options=${[['text', t('as_text')], ['formatted', t('as_formatted')]]} />
    </div>
    ${format === 'formatted'
      ? html`<iframe class="formatted" sandbox="" title=${t('as_formatted')} height=${frameHeight(text)} src=${apiPath(['messages', mail.id, 'view'])}></iframe>`
      : html`<${Messages} messages=${data.messages ?? [{ text, from: mail.participants.from[0] }]} />`}
    <${Attachments} files=${data.mail?.artifacts ?? []} />
    ${mail.claims.length > 0 && html`<section><h2>${t('claims')}</h2><ul class="plain-list">${mail.claims.slice(0, 50).map((/** @type {any} */ it) =>
      html`<${Claim} key=${it.workspace} claim=${it} onChange=${reload} />`)}</ul></section>`}
    <${Replies} lines=${replies.value ?? []} />
    ${target ? html`<${ReplyBox} target=${target} focus=${focusReply} onSent=${replies.reload}
        send=${(/** @type {string} */ answer, /** @type {string} */ key) => post(apiPath(['messages', mail.id, 'reply']), { text: answer, idempotency_key: key })} />`
      : html`<p class="quiet">${t('no_reply_target')}</p>`}
    <details><summary>${t('details')}</summary><dl class="details">
      <dt>${t('id')}</dt><dd><code>${mail.id}</code></dd>
      <dt>${t('message')}</dt><dd><code>${mail.msg_id}</code></dd>
      <dt>${t('file')}</dt><dd><code>${mail.location}/${mail.file}</code></dd>
      <dt>${t('deliveries')}</dt><dd>${value.trace?.records?.map((/** @type {any} */ record) => html`<div key=${record.record_id}>${record.box} <${Did} did=${record.owner} /> <${State} of=${record.state} /> <${Id} id=${record.record_id} /></div>`)}</dd>
      ${target && html`<dt>${t('reply_to')}</dt><dd>${didName(target)}</dd>`}
    </dl></details>
    ${isRuleShown && html`<${RuleDialog} rules=${mailRules(mail)} where=${t('rule_where_mail')} command=${`monoco mailbox sync\nmonoco mailbox explain ${mail.id}`} onClose=${() => showRule(false)} />`}
  </article>`;
}
