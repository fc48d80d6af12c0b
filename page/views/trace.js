// Trace: the history of any id as one vertical line, with the gaps in time between the steps.

import { html, useState } from '../html.js';
import { apiPath, get } from '../api.js';
import { duration, fullTime, t, wireText } from '../language.js';
import { go, link } from '../route.js';
import { useEvents } from '../stream.js';
import { useKeys } from '../keys.js';
import { Did, Empty, Failure, Foreign, Id, Loading, State, Time, useLoad } from '../ui.js';

/** Steps that are shown; a trace has at most some thousand. */
const MAX_STEPS = 150;

/** A gap that is worth a line of its own. */
const GAP_MS = 1000;

const BAD = new Set(['dead', 'failed', 'uncertain', 'blocked', 'dropped', 'damaged', 'expired']);

/**
 * Events and verdicts in the order of time.
 * @param {import('#api').TraceView} trace
 */
function steps(trace) {
  const messages = trace.messages.map((it) => ({ at: it.received_at, kind: 'received', text: it.from?.name || it.from?.id || '', id: it.id, seq: 0 }));
  const verdicts = trace.letters.flatMap((letter) => letter.verdicts.map((it) => (
    { at: it.at ?? letter.updated_at, kind: 'verdict', text: `${it.worker}: ${it.result}${it.note ? `, ${it.note}` : ''}`, id: letter.id, seq: 0 })));
  const events = trace.events.filter((it) => it.kind !== 'verdict' && it.kind !== 'received').map((it) => (
    { at: it.at, kind: it.kind, text: detailText(it.detail), id: it.record_id, seq: it.seq }));
  return [...messages, ...verdicts, ...events].sort((a, b) => Date.parse(a.at) - Date.parse(b.at) || a.seq - b.seq);
}

/** @param {any} detail */
function detailText(detail) {
  if (!detail || typeof detail !== 'object') return '';
  /** @param {unknown} value */
  const text = (value) => (typeof value === 'string' ? value : JSON.stringify(value));
  return Object.entries(detail).filter(([name, value]) => name !== 'mail' && value !== false && value !== null)
    .map(([name, value]) => `${name} ${Array.isArray(value) ? value.map(text).join(', ') : text(value)}`).join(' · ');
}

/** @param {{trace: import('#api').TraceView}} props */
function Timeline({ trace }) {
  const all = steps(trace);
  const shown = all.slice(0, MAX_STEPS);
  return html`<ol class="timeline">${shown.map((step, index) => {
    const gap = index > 0 ? Date.parse(step.at) - Date.parse(shown[index - 1].at) : 0;
    return html`<li key=${index} class=${BAD.has(step.kind) ? 'bad' : ''}>
      ${gap >= GAP_MS && html`<p class="gap">+ ${duration(gap)}</p>`}
      <p><span class="title">${wireText('event', step.kind)}</span> <time datetime=${step.at} class="quiet">${fullTime(step.at)}</time></p>
      <p class="quiet"><${Foreign}>${step.text}<//> ${step.id && html`<${Id} id=${step.id} />`}</p>
    </li>`;
  })}</ol>
  ${(all.length > MAX_STEPS || trace.truncated) && html`<p class="quiet">${t('trace_cut', { n: Math.max(0, all.length - MAX_STEPS) })}</p>`}`;
}

/** @param {{route: import('../route.js').Route}} props */
export default function TraceView({ route }) {
  const { id } = route;
  const [text, setText] = useState(id);
  const { value, error, reload } = useLoad(/** @returns {Promise<import('#api').TraceView | null>} */ async () => (id ? get(apiPath(['trace', id])) : null), [id]);
  useEvents((events) => value && events.some((event) => event.msg_id === value.msg_id) && reload());
  useKeys({ Escape: () => history.back() });
  return html`<section class="view">
    <h1>${t('view_trace')}</h1>
    <form class="filters" role="search" onSubmit=${(/** @type {Event} */ event) => {
      event.preventDefault();
      go(link('trace', text.trim()));
    }}>
      <label class="grow"><span class="hidden">${t('any_id')}</span><input id="search" type="search" placeholder=${t('any_id')} value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></label>
      <button>${t('show')}</button>
    </form>
    ${!id && html`<${Empty} title=${t('trace_empty')}>${t('trace_empty_hint')}<//>`}
    ${id && error && (/** @type {any} */ (error).status === 404
      ? html`<${Empty} title=${t('nothing_found')}>${t('trace_not_found')}<//>` : html`<${Failure} error=${error} retry=${reload} />`)}
    ${id && !value && !error && html`<${Loading} />`}
    ${value && html`<div class="stack">
      <p class="facts"><${Id} id=${value.msg_id ?? id} length=${40} />
        ${value.mail && html`<a href=${link('mail', value.mail.id)}>${t('open_mail')}</a>`}
        ${value.claims.slice(0, 10).map((claim) => html`<span key=${claim.workspace}><${Foreign}>${claim.workspace}<//> <${State} of=${claim.status} /></span>`)}</p>
      ${value.erased_at && html`<p class="warning">${t('erased')} <${Time} at=${value.erased_at} /></p>`}
      ${value.deliveries.length > 0 && html`<section><h2>${t('deliveries')}</h2><ul class="rows">${value.deliveries.slice(0, 40).map((it) => html`<li class="row plain" key=${it.record_id}>
        <${State} of=${it.state} /><span class="who"><${Did} did=${it.delivery?.target} /></span><span class="what">${t('attempts', { n: it.attempts })} ${it.delivery?.external_msg_id && html`<code>${it.delivery.external_msg_id}</code>`}</span>
        <span class="when"><${Time} at=${it.updated_at} /></span></li>`)}</ul></section>`}
      <h2>${t('timeline')}</h2>
      <${Timeline} trace=${value} />
    </div>`}
  </section>`;
}
