// Keyboard commands. They are inactive inside inputs, in dialogs and with a modifier key.

import { useEffect, useRef } from './html.js';

/** @typedef {Record<string, (event: KeyboardEvent) => void>} KeyTable */

/** @type {Set<() => KeyTable>} */
const tables = new Set();

/** @param {EventTarget | null} target */
const isInput = (target) =>
  target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (document.querySelector('dialog[open]')) return;
  if (isInput(event.target)) {
    // Escape leaves the input; the next one leaves the view.
    if (event.key === 'Escape') /** @type {HTMLElement} */ (event.target).blur();
    return;
  }
  // Enter on a button or link presses it.
  const isControl = event.target instanceof Element && event.target.closest('a, button, summary');
  if (event.key === 'Enter' && isControl) return;
  for (const table of tables) {
    const action = table()[event.key];
    if (action) {
      event.preventDefault();
      action(event);
      return;
    }
  }
});

/**
 * Keyboard commands of a component while it is shown.
 * @param {KeyTable} keys
 */
export function useKeys(keys) {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const table = () => latest.current;
    tables.add(table);
    return () => {
      tables.delete(table);
    };
  }, []);
}
