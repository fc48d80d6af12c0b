// Search: received and sent messages by their text, with the matches marked; the query is in the address.

import { html } from '../html.js';
import { apiPath, get } from '../api.js';
import { t, wireText } from '../language.js';
import { go, link, setFilters } from '../route.js';
import { didName, Empty, Failure, Foreign, Loading, Pages, safeText, State, Time, useCursor, useLoad } from '../ui.js';

const PAGE_SIZE = 50;

/** Filters with a list of values; `from:`, `in:` and `tunnel:` are written into the query. */
const CHOICES = /** @type {const} */ ({
  since: ['1h', '24h', '7d', '30d'],
  has: ['attachment', 'image', 'link'],
  status: ['new', 'claimed', 'completed', 'deadletter', 'wait', 'sent', 'failed', 'dead', 'uncertain', 'held'],
  order: ['oldest', 'relevance'],
});

/** Names of the lists of values. */
const NAMES = /** @type {(keyof typeof CHOICES)[]} */ (Object.keys(CHOICES));

/** The row that was opened last: the cursor returns to it. */
let opened = '';

/**
 * The query of the API: what the user wrote, and the chosen filters.
 * @param {URLSearchParams} query
 */
function queryText(query) {
  const chosen = ['since', 'has', 'status'].filter((name) => query.get(name)).map((name) => `${name}:${query.get(name)}`);
  return [query.get('q')?.trim(), ...chosen].filter(Boolean).join(' ');
}

/** @param {keyof typeof CHOICES} name @param {string} value */
function choiceText(name, value) {
  if (name === 'since') return t('search_since', { time: value });
  return name === 'status' ? wireText('state', value.toUpperCase()) : wireText(`search_${name}`, value);
}

/** @param {import('#api').FoundMessage} found */
const target = (found) => (found.mail_id ? link('mail', found.mail_id) : link('trace', found.msg_id));

/**
 * The part of a text that was found, with its matches marked. Positions count characters, so that
 * the text is cut into characters first; each part becomes a text node.
 * @param {{snippet: import('#api').Snippet}} props
 */
function Snippet({ snippet }) {
  const characters = Array.from(safeText(snippet.text));
  const parts = [];
  let end = 0;
  for (const [start, stop] of snippet.highlights) {
    parts.push(characters.slice(end, start).join(''), html`<mark>${characters.slice(start, stop).join('')}</mark>`);
    end = stop;
  }
  return html`<bdi class="snippet">${parts}${characters.slice(end).join('')}</bdi>`;
}

/** A name, or the account of a DID. @param {string} name */
const readable = (name) => (name.startsWith('did:') ? didName(name) : name);

/** @param {{found: import('#api').FoundMessage, current: boolean, onFocus: () => void, open: () => void}} props */
function Row({ found, current, onFocus, open }) {
  return html`<li class="row found ${current ? 'current' : ''}" data-id=${found.msg_id} tabindex="0" onFocus=${onFocus}
      onClick=${(/** @type {any} */ event) => event.target.closest('a') || open()}>
    <span class="who">${found.direction === 'out' ? '→ ' : ''}<${Foreign}>${readable(found.direction === 'out' ? found.chat : found.from)}<//></span>
    <span class="where">${found.direction === 'in' && html`<${Foreign}>${readable(found.chat)}<//>`} <span class="quiet"><${Foreign}>${found.tunnels.join(', ')}<//></span></span>
    <a class="what" href=${target(found)} tabindex="-1">${found.title && html`<${Foreign} class="title">${found.title}<//> `}<${Snippet} snippet=${found.snippet} /></a>
    <span class="claim">${found.status.slice(0, 3).map((status) => html`<${State} key=${status} of=${status} />`)}</span>
    <span class="when"><${Time} at=${found.at} /></span>
  </li>`;
}

/** @param {{query: URLSearchParams}} props */
function SearchForm({ query }) {
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    const data = new FormData(/** @type {HTMLFormElement} */ (event.target));
    setFilters({ q: String(data.get('q')), cursor: '' });
  };
  return html`<form class="filters" role="search" onSubmit=${submit}>
    <label class="grow wide"><span class="hidden">${t('search')}</span>
      <input id="search" name="q" type="search" autofocus maxlength="1000" placeholder=${t('search_hint')} value=${query.get('q') ?? ''} /></label>
    ${NAMES.map((name) => html`<label key=${name}><span class="hidden">${t(`search_by_${name}`)}</span>
      <select onChange=${(/** @type {any} */ event) => setFilters({ [name]: event.target.value, cursor: '' })}>
        <option value="">${t(`search_any_${name}`)}</option>
        ${CHOICES[name].map((value) => html`<option key=${value} value=${value} selected=${query.get(name) === value}>${choiceText(name, value)}</option>`)}
      </select></label>`)}
    <button>${t('apply')}</button>
  </form>`;
}

/** @param {{query: URLSearchParams}} props */
function Results({ query }) {
  const cursor = query.get('cursor') ?? '';
  const { value, error, reload } = useLoad(/** @returns {Promise<import('#api').SearchResults>} */ () => get(apiPath(['search'],
    { q: queryText(query), order: query.get('order'), cursor, limit: PAGE_SIZE })), [query.toString()]);
  const rows = value?.messages ?? [];
  /** @param {import('#api').FoundMessage} found */
  const open = (found) => {
    opened = found.msg_id;
    go(target(found));
  };
  const { current, setCurrent, list } = useCursor({ rows, idOf: (found) => found.msg_id, open, start: opened });
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!value) return html`<${Loading} />`;
  return html`${!value.complete && html`<p class="warning">${t('search_incomplete')}</p>`}
    ${rows.length > 0
      ? html`<ul class="rows" ref=${list} aria-label=${t('view_search')}>${rows.map((found) => html`<${Row} key=${found.msg_id} found=${found}
          current=${found.msg_id === current} onFocus=${() => setCurrent(found.msg_id)} open=${() => open(found)} />`)}</ul>`
      : html`<${Empty} title=${t('nothing_found')}>${t(value.next_cursor ? 'search_continue' : 'search_nothing')}<//>`}
    <${Pages} cursor=${cursor} next=${value.next_cursor} onMove=${(/** @type {string} */ next) => setFilters({ cursor: next })} />`;
}

/** @param {{route: import('../route.js').Route}} props */
export default function SearchView({ route }) {
  const { query } = route;
  return html`<section class="view">
    <h1>${t('view_search')}</h1>
    <${SearchForm} key=${query.get('q') ?? ''} query=${query} />
    ${queryText(query) ? html`<${Results} key=${query.toString()} query=${query} />`
      : html`<${Empty} title=${t('search_empty')} command=${'deploy "build is red" from:ann in:ops has:link'}>${t('search_empty_hint')}<//>`}
  </section>`;
}
