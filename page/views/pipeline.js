// Pipeline: the chains with the figures of each worker, letters by state, and what a replay changes.

import { html, useState } from '../html.js';
import { apiPath, get, post } from '../api.js';
import { duration, number, t, wireText } from '../language.js';
import { link, setFilters } from '../route.js';
import { useEvents } from '../stream.js';
import { act, Choice, Did, Empty, Failure, Foreign, Id, Pages, Pending, State, Time, useLoad } from '../ui.js';

const PAGE_SIZE = 50;
const STATES = ['TRASHED', 'DEAD', 'WAITING', 'AWAY', 'MERGED', 'DONE'];

/** @param {{name: string, worker: import('#api').Worker}} props */
function Worker({ name, worker }) {
  const counts = /** @type {const} */ (['pass', 'skip', 'trash', 'errors']).filter((count) => worker[count] > 0);
  const waiting = worker.waiting + worker.held + worker.away;
  return html`<li class="worker ${worker.errors > 0 ? 'has-errors' : ''}">
    <p class="title">${name} <span class="quiet">${worker.kind !== name ? worker.kind : ''}</span></p>
    <p class="figure">${number(worker.in)}</p>
    <p class="quiet">${counts.map((count) => `${wireText('verdict', count)} ${number(worker[count])}`).join(' · ') || t('no_letters_yet')}</p>
    ${waiting > 0 && html`<p><a href=${link('pipeline', '', { worker: name })}>${t('waiting_count', { n: number(waiting) })}</a></p>`}
    ${worker.in > 0 && worker.seconds > 0 && html`<p class="quiet">${duration((worker.seconds * 1000) / worker.in)} ${t('each')}</p>`}
  </li>`;
}

/** @param {{pipeline: import('#api').Pipeline}} props */
function Chains({ pipeline }) {
  /** @type {[string, string[]][]} */
  const chains = [[t('inbound'), pipeline.chains.inbound], [t('outbound'), pipeline.chains.outbound]];
  for (const [tunnel, own] of Object.entries(pipeline.chains.tunnels ?? {})) {
    for (const direction of /** @type {const} */ (['inbound', 'outbound'])) {
      const chain = /** @type {any} */ (own)[direction];
      if (chain) chains.push([`${tunnel} · ${t(direction)}`, chain]);
    }
  }
  return html`<div>${chains.slice(0, 20).map(([title, names]) => html`<section class="chain" key=${title}><h2>${title}</h2>
    <ol>${(names ?? []).map((name) => html`<${Worker} key=${name} name=${name} worker=${pipeline.workers[name] ?? { in: 0, pass: 0, skip: 0, trash: 0, errors: 0, waiting: 0, held: 0, away: 0, kind: name }} />`)}</ol>
  </section>`)}</div>`;
}

/** How a letter ended, and by which worker. @param {{of: import('#api').ReplayOutcome}} props */
const Outcome = ({ of }) => html`<span><${State} of=${of.state} /> ${of.at_worker ?? of.verdicts[of.verdicts.length - 1]?.worker ?? ''}</span>`;

/** What the chains of today would do with the letters of the last week. */
function Replay() {
  const [result, setResult] = useState(/** @type {import('#api').Replay | null} */ (null));
  const run = () => act(async () => {
    const since = new Date(Date.now() - 7 * 86_400_000).toISOString();
    setResult(await post(apiPath(['pipeline', 'replay']), { dry_run: true, since }));
  });
  return html`<section class="group"><header><h2>${t('replay')}</h2><button onClick=${run}>${t('replay_dry_run')}</button></header>
    <p class="quiet">${t('replay_hint')}</p>
    ${result && html`<p>${t('replay_result', { n: number(result.evaluated), differ: number(result.differ.length) })}${result.next_cursor ? ` ${t('replay_partial')}` : ''}</p>`}
    ${result && result.differ.length > 0 && html`<ul class="rows">${result.differ.slice(0, 50).map((/** @type {import('#api').ReplayDifference} */ it) => html`<li class="row plain" key=${it.id}>
      <a class="who" href=${link('trace', it.id)}><${Id} id=${it.id} /></a>
      <span class="what"><${Outcome} of=${it.was} /> → <${Outcome} of=${it.would} /></span>
    </li>`)}</ul>`}
  </section>`;
}

/** @param {{letter: import('#api').Letter, done: () => void}} props */
function Letter({ letter, done }) {
  /** @param {string} verb */
  const step = (verb) => () => act(() => post(apiPath(['letters', letter.id, verb])), t('letter_changed')).then(done);
  return html`<li class="row plain dead">
    <${State} of=${letter.state} />
    <span class="who"><${Did} did=${letter.from} /></span>
    <a class="what" href=${link('trace', letter.id)}><${Foreign} class="title">${letter.subject ?? ''}<//> <${Foreign}>${letter.failure ?? letter.to?.join(', ') ?? ''}<//></a>
    <span class="when">${letter.worker ?? ''} <${Time} at=${letter.updated_at} /></span>
    <span class="actions">
      ${letter.state === 'TRASHED' && html`<button onClick=${step('restore')}>${t('restore')}</button>`}
      ${letter.state === 'DEAD' && html`<button onClick=${step('retry')}>${t('retry')}</button>`}
      ${(letter.state === 'DEAD' || letter.state === 'WAITING') && html`<button onClick=${step('trash')}>${t('to_trash')}</button>`}
    </span>
  </li>`;
}

/** @param {{route: import('../route.js').Route}} props */
export default function PipelineView({ route }) {
  const { query } = route;
  const worker = query.get('worker') ?? '';
  const state = query.get('state') ?? (worker ? '' : 'TRASHED');
  const cursor = query.get('cursor') ?? '';
  const pipeline = useLoad(/** @returns {Promise<import('#api').Pipeline>} */ () => get(apiPath(['pipeline'])), []);
  const letters = useLoad(/** @returns {Promise<import('#api').Letters>} */ () => get(apiPath(['letters'], { state, worker, cursor, limit: PAGE_SIZE })), [state, worker, cursor]);
  useEvents((events) => {
    if (!events.some((event) => event.kind === 'letter' || event.kind === 'verdict')) return;
    pipeline.reload();
    letters.reload();
  });
  if (!pipeline.value) return html`<${Pending} title=${t('view_pipeline')} error=${pipeline.error} retry=${pipeline.reload} />`;
  const { states } = pipeline.value;
  return html`<section class="view">
    <h1>${t('view_pipeline')}</h1>
    <${Chains} pipeline=${pipeline.value} />
    <section><h2>${t('letters')}${worker && html` · <span>${worker}</span> <a href=${link('pipeline')}>${t('show_all')}</a>`}</h2>
      <div class="filters"><${Choice} label=${t('filter_status')} value=${state} onChange=${(/** @type {string} */ next) => setFilters({ state: next, cursor: '', worker: '' })}
        options=${STATES.map((it) => [it, `${wireText('state', it)} ${number(states[it] ?? 0)}`])} /></div>
      <${Failure} error=${letters.error} retry=${letters.reload} />
      ${letters.value?.letters.length === 0 && html`<${Empty} title=${t('no_letters')}>${t('no_letters_hint')}<//>`}
      <ul class="rows" aria-label=${t('letters')}>${letters.value?.letters.map((letter) => html`<${Letter} key=${letter.id} letter=${letter} done=${letters.reload} />`)}</ul>
      <${Pages} cursor=${cursor} next=${letters.value?.next_cursor} onMove=${(/** @type {string} */ next) => setFilters({ cursor: next })} />
    </section>
    <${Replay} />
  </section>`;
}
