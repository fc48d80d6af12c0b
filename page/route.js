// The address of a view: `#/view/id?filters`. Filters live in the address, so that every list can
// be linked, saved and reloaded.

import { useEffect, useState } from './html.js';

/** @typedef {{view: string, id: string, query: URLSearchParams}} Route */

/** @returns {Route} */
export function currentRoute() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?', 2);
  const [view, ...rest] = path.split('/');
  let id = rest.join('/');
  try {
    id = decodeURIComponent(id);
  } catch {
    // A broken escape stays as it is; the courier answers that there is no such id.
  }
  return { view: view || 'inbox', id, query: new URLSearchParams(query ?? '') };
}

/**
 * @param {string} view
 * @param {string} [id]
 * @param {Record<string, string | undefined>} [query]
 */
export function link(view, id = '', query = {}) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) params.set(name, value);
  const text = params.toString();
  return `#/${view}${id && `/${encodeURIComponent(id)}`}${text && `?${text}`}`;
}

/** @param {string} target */
export function go(target) {
  location.hash = target;
}

/**
 * Changes filters of the current view. An empty value removes a filter.
 * @param {Record<string, string | undefined>} changes
 */
export function setFilters(changes) {
  const { view, id, query } = currentRoute();
  go(link(view, id, { ...Object.fromEntries(query), ...changes }));
}

/** The current route; the component is drawn again when it changes. */
export function useRoute() {
  const [route, setRoute] = useState(currentRoute);
  useEffect(() => {
    const update = () => setRoute(currentRoute());
    addEventListener('hashchange', update);
    return () => removeEventListener('hashchange', update);
  }, []);
  return route;
}
