// Approvals: messages that a rule holds, with their full text; approve, edit or reject.

import { html, useState } from '../html.js';
import { apiPath, get, post } from '../api.js';
import { t, wireText } from '../language.js';
import { go, link, setFilters } from '../route.js';
import { useEvents } from '../stream.js';
import { useKeys } from '../keys.js';
import { approvalRules, RuleDialog } from '../rules.js';
import { act, Choice, Did, Empty, Failure, Foreign, ForeignText, Loading, notify, Pages, Pending, State, Time, useCursor, useLoad } from '../ui.js';

const PAGE_SIZE = 50;
const STATES = ['PENDING', 'APPROVED', 'REPLACED', 'REJECTED', 'WITHDRAWN', 'EXPIRED'];

/** The row that was opened last: the cursor returns to it. */
let opened = '';

/**
 * Answers exactly what was shown. When another answer was first, says whose.
 * @param {any} approval
 * @param {'approve' | 'reject' | 'edit'} verb
 * @param {Record<string, unknown>} body
 * @param {string} done
 */
async function answer(approval, verb, body, done) {
  try {
    await post(apiPath(['approvals', approval.id, verb]), { revision: approval.revision, ...body });
    notify(done);
  } catch (error) {
    const winner = /** @type {any} */ (error).status === 409 ? await get(apiPath(['approvals', approval.id])).catch(() => null) : null;
    await act(() => Promise.reject(winner?.answered_by
      ? new Error(t('already_answered', { name: winner.answered_by, state: wireText('state', winner.state) })) : error));
  }
}

/** @param {{route: import('../route.js').Route}} props */
export default function Approvals({ route }) {
  if (route.id) return html`<${ApprovalDetail} id=${route.id} />`;
  const state = route.query.get('state') ?? 'PENDING';
  return html`<section class="view"><h1>${t('view_approvals')}</h1>
    <div class="filters"><${Choice} label=${t('filter_status')} value=${state} onChange=${(/** @type {string} */ next) => setFilters({ state: next, cursor: '' })}
      options=${STATES.map((it) => [it, wireText('state', it)])} /></div>
    <${ApprovalList} state=${state} cursor=${route.query.get('cursor') ?? ''} />
  </section>`;
}

/** @param {{state: string, cursor: string}} props */
function ApprovalList({ state, cursor }) {
  const { value, error, reload } = useLoad(/** @returns {Promise<import('#api').ApprovalPage>} */ () => get(apiPath(['approvals'], { state, cursor, limit: PAGE_SIZE })), [state, cursor]);
  useEvents((events) => events.some((event) => event.kind === 'approval') && reload());
  const rows = value?.approvals ?? [];
  /** @param {import('#api').ApprovalView} row */
  const open = (row) => {
    opened = row.id;
    go(link('approvals', row.id));
  };
  const { current, setCurrent, list } = useCursor({ rows, idOf: (row) => row.id, open, start: opened });
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!value) return html`<${Loading} />`;
  if (rows.length === 0) return html`<${Empty} title=${t('no_approvals')}>${t('no_approvals_hint')}<//>`;
  return html`<ul class="rows" ref=${list} aria-label=${t('view_approvals')}>${rows.map((row) => html`<li class="row plain ${row.id === current ? 'current' : ''}" key=${row.id} data-id=${row.id} tabindex="0"
      onFocus=${() => setCurrent(row.id)} onClick=${() => open(row)}>
    <span class="who"><${Foreign}>${row.agent ?? row.author}<//> → <${Did} did=${row.to[0]} />${row.to.length > 1 ? ` + ${row.to.length - 1}` : ''}</span>
    <a class="what" tabindex="-1" href=${link('approvals', row.id)}><${Foreign}>${row.text ?? row.title ?? row.msg_id}<//></a>
    <${State} of=${row.state} /><span class="when"><${Time} at=${row.created_at} /></span>
  </li>`)}</ul>
  <${Pages} cursor=${cursor} next=${value.next_cursor} onMove=${(/** @type {string} */ next) => setFilters({ cursor: next })} />`;
}

/** Lines of the old and the new text that differ. @param {{before: string, after: string}} props */
function Diff({ before, after }) {
  if (before === after) return null;
  return html`<div class="diff"><section><h2>${t('before')}</h2><del><${ForeignText} text=${before} /></del></section>
    <section><h2>${t('after')}</h2><ins><${ForeignText} text=${after} /></ins></section></div>`;
}

/** @param {{id: string}} props */
function ApprovalDetail({ id }) {
  const { value, error, reload } = useLoad(() => get(apiPath(['approvals', id])), [id]);
  const [edited, setEdited] = useState(/** @type {string | null} */ (null));
  const [reason, setReason] = useState('');
  const [isRuleShown, showRule] = useState(false);
  useEvents((events) => value && events.some((event) => event.msg_id === value.msg_id) && reload());
  const back = () => go(link('approvals'));
  const isPending = value?.state === 'PENDING';
  const approve = () => answer(value, 'approve', {}, t('approved')).then(reload);
  useKeys({ Escape: back, ...(isPending && edited === null ? { a: approve } : {}) });
  if (!value) return html`<${Pending} title=${t('view_approvals')} error=${error} retry=${reload} />`;
  return html`<article class="view mail">
    <p class="back"><button class="plain" onClick=${back}>← ${t('back')} <kbd>Esc</kbd></button></p>
    <h1><${Foreign}>${value.title ?? t('view_approvals')}<//> <${State} of=${value.state} /></h1>
    <dl class="details">
      <dt>${t('author')}</dt><dd><${Foreign}>${value.agent ?? value.author}<//> <span class="quiet"><${Foreign}>${value.author}<//></span></dd>
      <dt>${t('to')}</dt><dd>${value.to.slice(0, 50).map((/** @type {string} */ did) => html`<div key=${did}><${Did} did=${did} /> <span class="quiet"><${Foreign}>${did}<//></span></div>`)}</dd>
      ${value.expires_at && html`<dt>${t('expires')}</dt><dd><${Time} at=${value.expires_at} /></dd>`}
    </dl>
    <p class="warning"><${Foreign}>${t('held_because', { rule: value.rule, why: value.why })}<//></p>
    ${value.after_untrusted && html`<p class="warning">${t('after_untrusted')}</p>`}
    ${value.answered_by && html`<p><${Foreign}>${t('answered_by', { name: value.answered_by })}<//> <${Time} at=${value.answered_at} /> <${Foreign}>${value.reason ?? ''}<//></p>`}
    ${edited === null
      ? html`<ul class="messages"><li><${ForeignText} text=${value.text ?? t('erased')} /></li></ul>`
      : html`<label>${t('edit')}<textarea rows="8" dir="auto" value=${edited} onInput=${(/** @type {any} */ event) => setEdited(event.target.value)}></textarea></label>
        <${Diff} before=${value.text ?? ''} after=${edited} />`}
    <div class="actions toolbar">${isPending && html`
      ${edited === null
        ? html`<button class="primary" onClick=${approve}>${t('approve')} <kbd>a</kbd></button><button onClick=${() => setEdited(value.text ?? '')}>${t('edit')}</button>`
        : html`<button class="primary" disabled=${edited === value.text} onClick=${() => answer(value, 'edit', { text: edited }, t('edited')).then(() => {
            setEdited(null);
            reload();
          })}>${t('send_edited')}</button><button onClick=${() => setEdited(null)}>${t('cancel')}</button>`}
      <label>${t('reason')} <input maxlength="200" value=${reason} onInput=${(/** @type {any} */ event) => setReason(event.target.value)} /></label>
      <button onClick=${() => answer(value, 'reject', reason ? { reason } : {}, t('rejected')).then(reload)}>${t('reject')}</button>
      `}
      <a class="button" href=${link('trace', value.msg_id)}>${t('view_trace')}</a>
      <button onClick=${() => showRule(true)}>${t('make_rule')}</button>
    </div>
    ${isRuleShown && html`<${RuleDialog} rules=${approvalRules(value)} where=${t('rule_where_approval')} command=${'monoco approve replay --since 7d\nmonoco courier reload'} onClose=${() => showRule(false)} />`}
  </article>`;
}
