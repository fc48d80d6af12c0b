// The frame of the page: login, navigation, connection, help. Each view is a module of its own,
// loaded when it is first shown.

import { html, render, useEffect, useState } from './html.js';
import { get, post, watchConnection } from './api.js';
import { language, setLanguage, t } from './language.js';
import { useRoute, link, go } from './route.js';
import { startStream, useEvents } from './stream.js';
import { useKeys } from './keys.js';
import { Failure, Loading, Notices } from './ui.js';

/** @type {Record<string, () => Promise<{default: (props: {route: import('./route.js').Route}) => any}>>} */
const VIEWS = {
  inbox: () => import('./views/inbox.js'),
  mail: () => import('./views/mail.js'),
  search: () => import('./views/search.js'),
  conversations: () => import('./views/conversations.js'),
  approvals: () => import('./views/approvals.js'),
  dead: () => import('./views/dead.js'),
  pipeline: () => import('./views/pipeline.js'),
  trace: () => import('./views/trace.js'),
  health: () => import('./views/health.js'),
  agents: () => import('./views/agents.js'),
};

/** Views in the navigation; a Mail is opened from a list. */
const NAVIGATION = /** @type {const} */ (['inbox', 'search', 'conversations', 'approvals', 'dead', 'pipeline', 'trace', 'health', 'agents']);

/** Events after which the numbers in the navigation may have changed. */
const COUNTED = new Set(['approval', 'dead', 'uncertain', 'completed', 'marked', 'verdict', 'claimed', 'lease_ended', 'email_task', 'moved']);

/** Shortest time between two updates of the numbers. */
const COUNT_INTERVAL_MS = 2000;

/** Sends the code of `monoco open` and removes it from the address and the history. */
async function login() {
  const code = /^#login=([\w-]+)$/.exec(location.hash)?.[1];
  if (!code) return;
  history.replaceState(null, '', `${location.pathname}#/inbox`);
  await post('/api/v1/login', { code });
}

function LoggedOut() {
  return html`<main class="login">
    <h1>Monoco</h1>
    <p>${t('logged_out')}</p>
    <pre class="command"><code>monoco open</code></pre>
    <p class="quiet">${t('logged_out_hint')}</p>
  </main>`;
}

/** @param {{onClose: () => void}} props */
function Help({ onClose }) {
  useEffect(() => /** @type {HTMLDialogElement} */ (document.getElementById('help')).showModal(), []);
  /** @type {[string, string][]} */
  const keys = [['j k', t('key_move')], ['Enter', t('key_open')], ['Esc', t('key_back')], ['c', t('key_claim')],
    ['e', t('key_done')], ['r', t('key_reply')], ['x', t('key_select')], ['a', t('key_approve')],
    ['n', t('key_new')], ['/', t('key_search')], ['?', t('key_help')]];
  return html`<dialog id="help" onClose=${onClose} aria-labelledby="help-title">
    <h2 id="help-title">${t('keys')}</h2>
    <dl class="keys">${keys.map(([key, text]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl>
    <form method="dialog" class="actions"><button class="primary">${t('close')}</button></form>
  </dialog>`;
}

/** Chooses between the theme of the system and the other one. */
function ThemeButton() {
  const root = document.documentElement;
  const [theme, setTheme] = useState(root.dataset.theme);
  const isDark = theme ? theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  const toggle = () => {
    const next = isDark ? 'light' : 'dark';
    root.dataset.theme = next;
    localStorage.setItem('theme', next);
    setTheme(next);
  };
  return html`<button onClick=${toggle}>${isDark ? t('theme_light') : t('theme_dark')}</button>`;
}

/** The numbers beside the links of the navigation. */
function useCounts() {
  const [counts, setCounts] = useState(/** @type {Record<string, number>} */ ({}));
  const [due, setDue] = useState(0);
  useEffect(() => {
    let isShown = true;
    const timer = setTimeout(async () => {
      const health = await get('/health').catch(() => null);
      if (health?.dead && isShown) setCounts({ dead: health.dead.total, approvals: health.pending_approvals ?? 0 });
    }, due === 0 ? 0 : COUNT_INTERVAL_MS);
    return () => {
      isShown = false;
      clearTimeout(timer);
    };
  }, [due]);
  useEvents((events) => {
    if (events.some((event) => COUNTED.has(event.kind))) setDue(events[events.length - 1].seq);
  });
  return counts;
}

/** @param {{route: import('./route.js').Route}} props */
function View({ route }) {
  const [loaded, setLoaded] = useState(/** @type {any} */ ({}));
  const name = route.view in VIEWS ? route.view : 'inbox';
  const load = () => VIEWS[name]().then(
    (module) => setLoaded({ name, Component: module.default }),
    () => setLoaded({ name, error: new Error(t('error_unreachable')) }),
  );
  useEffect(() => {
    load();
  }, [name]);
  useEffect(() => {
    document.title = `${t(/** @type {any} */ (`view_${name}`))} · Monoco`;
  }, [name]);
  if (loaded.name !== name) return html`<${Loading} />`;
  if (loaded.error) return html`<${Failure} error=${loaded.error} retry=${load} />`;
  return html`<${loaded.Component} key=${`${name}/${route.id}`} route=${route} />`;
}

/** @param {{live: boolean | null}} props */
function Frame({ live }) {
  const route = useRoute();
  const counts = useCounts();
  const [help, setHelp] = useState(false);
  // On a narrow screen the navigation is a bar that scrolls.
  useEffect(() => document.querySelector('nav a[aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'center' }), [route.view]);
  useKeys({
    '?': () => setHelp(true),
    '/': () => {
      const search = document.getElementById('search');
      if (search) search.focus();
      else go(link('search'));
    },
  });
  return html`<div class="frame">
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => {
      event.preventDefault();
      document.getElementById('main')?.focus();
    }}>${t('skip')}</a>
    <header class="side">
      <p class="brand">Monoco</p>
      <nav aria-label=${t('views')}>
        ${NAVIGATION.map((name) => html`<a key=${name} href=${link(name)} aria-current=${route.view === name ? 'page' : undefined}>
          <span>${t(`view_${name}`)}</span>
          ${counts[name] > 0 && html`<span class="count">${counts[name]}</span>`}
        </a>`)}
      </nav>
      <div class="side-end">
        <p class="live ${live === false ? 'off' : 'on'}" role="status">${live === null ? t('connecting') : live ? t('live') : t('not_live')}</p>
        <button onClick=${() => setHelp(true)}>${t('keys')} <kbd>?</kbd></button>
        <${ThemeButton} />
        <button lang=${language === 'zh' ? 'en' : 'zh'} onClick=${() => setLanguage(language === 'zh' ? 'en' : 'zh')}>
          ${language === 'zh' ? 'English' : '中文'}
        </button>
      </div>
    </header>
    <main id="main" tabindex="-1"><${View} route=${route} /></main>
    <${Notices} />
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}
  </div>`;
}

function App() {
  const [status, setStatus] = useState(/** @type {'starting' | 'ready' | 'logged_out' | 'failed'} */ ('starting'));
  const [live, setLive] = useState(/** @type {boolean | null} */ (null));
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const start = async () => {
    setError(null);
    try {
      await login();
      // The stream starts before the first list is read, so that no event falls between them.
      const { last } = await get('/api/v1/events?tail=1&limit=1');
      startStream(last, setLive);
      setStatus('ready');
    } catch (failure) {
      const isLogin = /** @type {any} */ (failure).status === 401;
      setStatus(isLogin ? 'logged_out' : 'failed');
      setError(/** @type {Error} */ (failure));
    }
  };
  useEffect(() => {
    start();
    const stop = watchConnection((connection) => connection === 'logged_out' && setStatus('logged_out'));
    return () => {
      stop();
    };
  }, []);
  // A stream does not say why it ended; a request does, for instance that the login was revoked.
  useEffect(() => {
    if (live === false) get('/api/v1/events?tail=1&limit=1').catch(() => {});
  }, [live]);
  if (status === 'logged_out') return html`<${LoggedOut} />`;
  if (status === 'failed') return html`<main class="login"><h1>Monoco</h1><${Failure} error=${error} retry=${start} /></main>`;
  if (status === 'starting') return html`<main class="login"><h1>Monoco</h1><${Loading} /></main>`;
  return html`<${Frame} live=${live} />`;
}

const theme = localStorage.getItem('theme');
if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
document.documentElement.lang = language === 'zh' ? 'zh-CN' : 'en';
const root = document.getElementById('page');
if (root) {
  root.replaceChildren();
  render(html`<${App} />`, root);
}
