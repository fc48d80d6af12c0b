// Health: tunnels, what waits, figures per minute as plots with a table, halt and resume.

import { html, useEffect, useRef, useState } from '../html.js';
import { apiPath, courierNow, get, post, put, remove } from '../api.js';
import { duration, number, shortTime, t, wireText } from '../language.js';
import { link, setFilters } from '../route.js';
import { useEvents } from '../stream.js';
import { act, Choice, Confirm, Empty, Failure, Foreign, Id, notify, Pending, State, Time, useLoad } from '../ui.js';

/** Shortest time between two reads while events arrive. */
const REFRESH_MS = 3000;

/** The same for figures, which the courier counts some seconds later. */
const FIGURES_REFRESH_MS = 8000;

/** Spans that can be chosen, in minutes. */
const SPANS = { '60': '1 h', '360': '6 h', '1440': '24 h', '10080': '7 d' };

const PLOT_HEIGHT = 200;

/** Rows of the table beside a plot: the newest. */
const TABLE_ROWS = 12;

/** Most lines of one plot. */
const MAX_SERIES = 6;

const SERIES = /** @type {const} */ (['received', 'merged', 'claimed', 'sent', 'failed']);

/**
 * Reloads some time after an event, at most once in this time. Without events no timer runs.
 * @param {() => unknown} reload
 * @param {number} delay
 */
function useReloadAfterEvents(reload, delay) {
  const [isDue, setDue] = useState(false);
  useEvents(() => setDue(true));
  useEffect(() => {
    if (!isDue) return undefined;
    const timer = setTimeout(() => {
      setDue(false);
      reload();
    }, delay);
    return () => clearTimeout(timer);
  }, [isDue, reload]);
}

/** @param {{label: string, children?: any, tone?: string, href?: string}} props */
const Tile = ({ label, children, tone = '', href }) => html`<div class="tile ${tone}"><p class="figure">${href ? html`<a href=${href}>${children}</a>` : children}</p><p class="quiet">${label}</p></div>`;

/** Labels of the time axis, in the language of the page. @param {unknown} _plot @param {number[]} seconds */
const timeLabels = (_plot, seconds) => seconds.map((at) => shortTime(new Date(at * 1000).toISOString(), courierNow()));

/** Adds the style sheet of uPlot once. */
function addStyles() {
  if (document.getElementById('uplot-style')) return;
  const sheet = document.createElement('link');
  sheet.id = 'uplot-style';
  sheet.rel = 'stylesheet';
  sheet.href = 'assets/vendor/uplot.css';
  document.head.append(sheet);
}

/**
 * One plot, drawn by uPlot, which is loaded only here.
 * @param {{title: string, minutes: string[], series: {label: string, values: number[]}[]}} props
 */
function Plot({ title, minutes, series }) {
  const place = useRef(/** @type {HTMLDivElement | null} */ (null));
  useEffect(() => {
    let plot = /** @type {any} */ (null);
    let isShown = true;
    const resized = new ResizeObserver(([entry]) => plot?.setSize({ width: entry.contentRect.width, height: PLOT_HEIGHT }));
    const draw = async () => {
      const { default: UPlot } = await import('../vendor/uplot.mjs');
      addStyles();
      const element = place.current;
      if (!isShown || !element) return;
      const style = getComputedStyle(document.documentElement);
      const color = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
      const axis = { stroke: color('--text-quiet'), grid: { stroke: color('--line'), width: 1 }, ticks: { stroke: color('--line'), width: 1 } };
      plot = new UPlot({
        width: element.clientWidth, height: PLOT_HEIGHT, cursor: { drag: { x: false } }, legend: { live: false },
        axes: [{ ...axis, values: timeLabels }, { ...axis, size: 44 }], scales: { y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ top) => [0, Math.max(4, Math.ceil(top * 1.1))] } },
        series: [{}, ...series.map(({ label }, index) => ({ label, stroke: color(`--series-${index + 1}`), width: 1.5, points: { show: false } }))],
      }, [minutes.map((at) => Date.parse(at) / 1000), ...series.map(({ values }) => values)], element);
      resized.observe(element);
    };
    draw().catch(() => {});
    return () => {
      isShown = false;
      resized.disconnect();
      plot?.destroy();
    };
  }, [minutes, series]);
  const first = Math.max(0, minutes.length - TABLE_ROWS);
  return html`<figure class="plot"><figcaption>${title}</figcaption>
    <div ref=${place} aria-hidden="true"></div>
    <details><summary>${t('as_table')}</summary><div class="scroll" tabindex="0" role="region" aria-label=${title}><table><thead><tr><th scope="col">${t('minute')}</th>${series.map(({ label }) => html`<th scope="col" key=${label}>${label}</th>`)}</tr></thead>
      <tbody>${minutes.slice(first).map((at, index) => html`<tr key=${at}><th scope="row"><${Time} at=${at} /></th>${series.map(({ label, values }) => html`<td key=${label}>${number(values[first + index])}</td>`)}</tr>`)}</tbody></table></div></details>
  </figure>`;
}

/**
 * Every interval of the span, with zeros where nothing was counted.
 * @param {any} figures
 */
function everyInterval(figures) {
  const step = figures.step_minutes * 60_000;
  const start = Date.parse(figures.since);
  const length = Math.max(1, Math.ceil((Date.parse(figures.until) - start) / step));
  const minutes = Array.from({ length }, (_, index) => new Date(start + index * step).toISOString());
  /** @param {(row: any) => boolean} wanted */
  const sums = (wanted) => {
    const values = new Array(length).fill(0);
    for (const row of figures.figures) {
      const position = Math.floor((Date.parse(row.at) - start) / step);
      if (position in values && wanted(row)) values[position] += row.count;
    }
    return values;
  };
  return { minutes, sums };
}

/**
 * The longest waiting time of each interval, in seconds, for each name that `nameOf` finds.
 * @param {any} figures
 * @param {(row: import('#api').WaitingAge) => string | null | undefined} nameOf
 */
function waitingSeries(figures, nameOf) {
  const { minutes } = everyInterval(figures);
  const start = Date.parse(figures.since);
  /** @type {Map<string, number[]>} */
  const series = new Map();
  for (const row of figures.waiting) {
    const name = nameOf(row);
    const position = Math.floor((Date.parse(row.at) - start) / (figures.step_minutes * 60_000));
    if (!name || position < 0 || position >= minutes.length) continue;
    const values = series.get(name) ?? new Array(minutes.length).fill(0);
    values[position] = Math.round(row.oldest_ms / 1000);
    series.set(name, values);
  }
  return [...series].slice(0, MAX_SERIES).map(([label, values]) => ({ label, values }));
}

/** @param {{span: string}} props */
function Figures({ span }) {
  const { value, error, reload } = useLoad(async () => {
    const since = new Date(courierNow() - Number(span) * 60_000).toISOString();
    const figures = await get(apiPath(['figures'], { since }));
    const { minutes, sums } = everyInterval(figures);
    const tunnels = [...new Set(figures.figures.map((/** @type {any} */ row) => row.tunnel).filter(Boolean))].slice(0, MAX_SERIES);
    const workers = [...new Set(figures.figures.map((/** @type {any} */ row) => row.worker).filter(Boolean))].slice(0, MAX_SERIES);
    return { minutes,
      all: SERIES.map((kind) => ({ label: wireText('event', kind), values: sums((row) => row.kind === kind && !row.worker) })),
      tunnels: tunnels.map((tunnel) => ({ label: String(tunnel), values: sums((row) => row.tunnel === tunnel && (row.kind === 'received' || row.kind === 'sent')) })),
      workers: workers.map((worker) => ({ label: String(worker), values: sums((row) => row.worker === worker) })),
      waitingTunnels: waitingSeries(figures, (row) => row.tunnel), waitingWorkers: waitingSeries(figures, (row) => row.worker) };
  }, [span]);
  useReloadAfterEvents(reload, FIGURES_REFRESH_MS);
  return html`<section><header class="split"><h2>${t('figures')}</h2>
      <${Choice} label=${t('span')} value=${span} options=${Object.entries(SPANS)} onChange=${(/** @type {string} */ next) => setFilters({ span: next })} /></header>
    ${error && html`<${Failure} error=${error} retry=${reload} />`}
    ${value && html`<div class="plots">
      <${Plot} title=${t('per_minute')} minutes=${value.minutes} series=${value.all} />
      ${value.tunnels.length > 0 && html`<${Plot} title=${t('per_tunnel')} minutes=${value.minutes} series=${value.tunnels} />`}
      ${value.workers.length > 0 && html`<${Plot} title=${t('per_worker')} minutes=${value.minutes} series=${value.workers} />`}
      ${value.waitingTunnels.length > 0 && html`<${Plot} title=${t('waiting_per_tunnel')} minutes=${value.minutes} series=${value.waitingTunnels} />`}
      ${value.waitingWorkers.length > 0 && html`<${Plot} title=${t('waiting_per_worker')} minutes=${value.minutes} series=${value.waitingWorkers} />`}
    </div>`}</section>`;
}

/** @param {{name: string, tunnel: import('#api').AdapterHealth, done: () => void}} props */
function Tunnel({ name, tunnel, done }) {
  const isPaused = tunnel.status === 'paused';
  const pause = () => act(() => post(apiPath(['tunnels', name, isPaused ? 'resume' : 'pause'])), t(isPaused ? 'resumed' : 'paused')).then(done);
  const test = () => act(async () => {
    const result = await post(apiPath(['tunnels', name, 'test']));
    if (!result.ok) throw new Error(`${name}: ${result.error}`);
  }, t('test_ok', { name }));
  return html`<tr><th scope="row">${name} <span class="quiet">${tunnel.provider}</span></th><td><${State} of=${tunnel.status} /></td>
    <td>${number(tunnel.received)}</td><td>${number(tunnel.sent)}</td><td><${Time} at=${tunnel.last_message_at} /></td>
    <td class="error"><${Foreign}>${tunnel.last_error ?? ''}<//></td>
    <td><span class="actions"><button onClick=${test} aria-label=${`${t('test')} ${name}`}>${t('test')}</button> <button onClick=${pause} aria-label=${`${t(isPaused ? 'resume' : 'pause')} ${name}`}>${t(isPaused ? 'resume' : 'pause')}</button></span></td></tr>`;
}

/** The couriers that share the store, and what each of them does. @param {{cluster: import('#api').ClusterHealth}} props */
function Cluster({ cluster }) {
  /** @param {string} id */
  const duties = (id) => cluster.duties.filter((duty) => duty.courier === id).map((duty) => duty.name).join(', ');
  const vacant = cluster.duties.filter((duty) => !duty.courier).map((duty) => duty.name);
  return html`<section><h2>${t('couriers')}</h2>
    ${vacant.length > 0 && html`<p class="warning">${t('duties_vacant', { names: vacant.slice(0, 10).join(', ') })}</p>`}
    <div class="scroll" tabindex="0" role="region" aria-label=${t('couriers')}><table><thead><tr><th scope="col">${t('courier')}</th><th scope="col">${t('status')}</th><th scope="col">${t('duties')}</th><th scope="col">${t('tunnels')}</th><th scope="col">${t('last_seen')}</th><th scope="col">${t('starts')}</th></tr></thead>
      <tbody>${cluster.couriers.slice(0, 50).map((courier) => html`<tr key=${courier.id}><th scope="row"><${Id} id=${courier.id} length=${13} />${courier.id === cluster.courier && html` <span class="quiet">${t('this_courier')}</span>`}</th>
        <td><span class="badge ${courier.live ? 'good' : 'bad'}">${t(courier.live ? 'courier_live' : 'courier_gone')}</span></td><td>${duties(courier.id) || '–'}</td><td>${courier.tunnels.join(', ') || '–'}</td><td><${Time} at=${courier.seen_at} /></td><td>${number(courier.boot)}</td></tr>`)}</tbody></table></div>
  </section>`;
}

/** Why the courier is degraded, in its own words. @param {import('#api').HealthView} health */
const problems = ({ storage, remote, cluster, clock_problem }) =>
  [storage.detail, storage.objects?.error, remote?.problem, clock_problem, ...(cluster?.database.problems ?? [])].filter(Boolean);

/** Stops all deliveries, and starts them again. */
function Halt() {
  const { value, reload } = useLoad(/** @returns {Promise<import('#api').HaltList>} */ () => get(apiPath(['halts'])), []);
  const [isAsked, setAsked] = useState(false);
  useEvents((events) => events.some((event) => event.kind === 'halted') && reload());
  const halts = value?.halts ?? [];
  const isHalted = halts.some((it) => it.scope === 'all');
  const halt = () => act(async () => {
    const { sending } = await put(apiPath(['halts', 'all']));
    notify(t('halt_done', { n: sending }));
  }).then(reload);
  /** @param {string} scope */
  const resume = (scope) => act(async () => {
    const { waiting } = await remove(apiPath(['halts', scope]));
    notify(t('halt_resumed', { n: waiting }));
  }).then(reload);
  return html`<section>
    ${halts.slice(0, 20).map((it) => html`<p class="warning split" key=${it.scope}><span>${t('halted')}: <${Foreign}>${it.scope}<//> · <${Foreign}>${it.by}<//> <${Time} at=${it.at} /></span>
      <button onClick=${() => resume(it.scope)} aria-label=${`${t('resume')} ${it.scope}`}>${t('resume')}</button></p>`)}
    ${value && !isHalted && html`<p><button onClick=${() => setAsked(true)}>${t('halt')}</button></p>`}
    ${isAsked && html`<${Confirm} title=${t('halt')} confirm=${t('halt')} onConfirm=${halt} onClose=${() => setAsked(false)}><p>${t('halt_hint')}</p><//>`}
  </section>`;
}

/** @param {{route: import('../route.js').Route}} props */
export default function HealthView({ route }) {
  const span = route.query.get('span') ?? '60';
  const { value, error, reload } = useLoad(/** @returns {Promise<import('#api').HealthView>} */ () => get('/health'), []);
  useReloadAfterEvents(reload, REFRESH_MS);
  if (!value) return html`<${Pending} title=${t('view_health')} error=${error} retry=${reload} />`;
  const tunnels = Object.entries(value.adapters).slice(0, 100);
  /** @param {number | null} [ms] */
  const age = (ms) => (ms === null || ms === undefined ? '–' : duration(ms));
  return html`<section class="view">
    <h1>${t('view_health')} <${State} of=${value.status} /></h1>
    ${problems(value).map((problem) => html`<p class="warning" key=${problem}><${Foreign}>${problem}<//></p>`)}
    <div class="tiles">
      <${Tile} label=${t('tile_received')}>${number(value.metrics.messages_received)}<//>
      <${Tile} label=${t('tile_sent')}>${number(value.metrics.messages_sent)}<//>
      <${Tile} label=${t('tile_pending')}>${number(value.metrics.messages_pending)}<//>
      <${Tile} label=${t('tile_oldest_mail')} href=${link('inbox', '', { status: 'NEW' })}>${age(value.oldest_unclaimed_mail_ms)}<//>
      <${Tile} label=${t('tile_oldest_delivery')}>${age(value.oldest_waiting_delivery_ms)}<//>
      <${Tile} label=${t('view_dead')} href=${link('dead')} tone=${value.dead.total > 0 ? 'bad' : ''}>${number(value.dead.total)}<//>
    </div>
    ${Math.abs(value.clock_drift_ms) > 2000 && html`<p class="warning">${t('clock_drift', { time: duration(Math.abs(value.clock_drift_ms)) })}</p>`}
    <section><h2>${t('tunnels')}</h2>
      ${tunnels.length === 0 ? html`<${Empty} title=${t('no_tunnel')} command="monoco tunnel add">${t('no_tunnel_hint')}<//>`
        : html`<div class="scroll" tabindex="0" role="region" aria-label=${t('tunnels')}><table><thead><tr><th scope="col">${t('tunnel')}</th><th scope="col">${t('status')}</th><th scope="col">${t('event_received')}</th><th scope="col">${t('event_sent')}</th><th scope="col">${t('last_message')}</th><th scope="col">${t('last_error')}</th><th scope="col">${t('actions')}</th></tr></thead>
          <tbody>${tunnels.map(([name, tunnel]) => html`<${Tunnel} key=${name} name=${name} tunnel=${tunnel} done=${reload} />`)}</tbody></table></div>`}
    </section>
    ${value.cluster && html`<${Cluster} cluster=${value.cluster} />`}
    <${Figures} key=${span} span=${span} />
    <${Halt} />
    <section><h2>${t('courier')}</h2><dl class="details">
      <dt>${t('version')}</dt><dd>${value.version}</dd>
      <dt>${t('storage')}</dt><dd><${State} of=${value.storage.status} /></dd>
      <dt>${t('view_pipeline')}</dt><dd><${State} of=${value.pipeline.status} /></dd>
    </dl></section>
  </section>`;
}
