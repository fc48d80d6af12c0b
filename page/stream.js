// The event stream: one connection per visible tab, resumed after the last event that was seen.
//
// A hidden tab closes its stream: a browser opens at most six connections to one courier, and a
// tab that is not looked at has nothing to do. It resumes with `after` and misses nothing.

import { useEffect, useRef } from './html.js';

/** All kinds of events; a test compares them with the courier's. */
export const EVENT_KINDS = ['received', 'merged', 'claimed', 'renewed', 'read', 'completed', 'moved',
  'expired', 'restored', 'dispatched', 'posted', 'edited', 'recalled', 'notice', 'duplicate',
  'blocked', 'dropped', 'taken', 'marked', 'lease_ended', 'sending', 'part_sent', 'postponed',
  'sent', 'failed', 'uncertain', 'dead', 'receipt', 'changed', 'erased', 'damaged', 'letter',
  'verdict', 'email_task'];

/** Events are passed on together after this time: a burst redraws a view only a few times a second. */
const BATCH_MS = 200;

/** Pauses before the stream is opened again; the last one repeats. */
const RETRY_MS = [500, 1000, 2000, 5000, 10_000];

/** Most events of one batch that views get; a view reloads after more of them anyway. */
const MAX_BATCH = 1000;

/** @typedef {{seq: number, at: string, kind: string, msg_id?: string, record_id?: string, owner?: string, detail?: any}} CourierEvent */

/** @type {Set<(events: CourierEvent[]) => void>} */
const readers = new Set();
/** @type {CourierEvent[]} */
let batch = [];
/** @type {EventSource | null} */
let source = null;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let retry;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let flush;
let last = -1;
let failures = 0;
/** @type {(live: boolean) => void} */
let onLive = () => {};

/** @param {MessageEvent} message */
function receive(message) {
  let event;
  try {
    event = JSON.parse(message.data);
  } catch {
    return;
  }
  last = event.seq;
  if (batch.length < MAX_BATCH) batch.push(event);
  flush ??= setTimeout(() => {
    const events = batch;
    batch = [];
    flush = undefined;
    readers.forEach((reader) => reader(events));
  }, BATCH_MS);
}

function open() {
  close();
  if (document.hidden) return;
  source = new EventSource(last < 0 ? '/api/v1/events' : `/api/v1/events?after=${last}`);
  for (const kind of EVENT_KINDS) source.addEventListener(kind, receive);
  source.onopen = () => {
    failures = 0;
    onLive(true);
  };
  // The browser reconnects by itself after some errors and never after others. Opening a new
  // stream each time behaves the same after all of them.
  source.onerror = () => {
    close();
    onLive(false);
    retry = setTimeout(open, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]);
    failures += 1;
  };
}

function close() {
  clearTimeout(retry);
  source?.close();
  source = null;
}

/**
 * Opens the stream after event number `after`.
 * @param {number} after
 * @param {(live: boolean) => void} liveChanged
 */
export function startStream(after, liveChanged) {
  last = after;
  onLive = liveChanged;
  document.addEventListener('visibilitychange', () => (document.hidden ? close() : open()));
  open();
}

/**
 * Calls `reader` with each batch of events while the component is shown.
 * @param {(events: CourierEvent[]) => void} reader
 */
export function useEvents(reader) {
  const latest = useRef(reader);
  latest.current = reader;
  useEffect(() => {
    /** @param {CourierEvent[]} events */
    const read = (events) => latest.current(events);
    readers.add(read);
    return () => {
      readers.delete(read);
    };
  }, []);
}
