// Drives the web page in Chromium for `it/page.rs`.
//
// node browser.mjs SCENARIO LINK [ARGUMENT …]
// A scenario prints one JSON object per line and may wait for a line of the test.

import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import readline from 'node:readline';
import { createRequire } from 'node:module';

const require = createRequire(path.join(process.env.REFERENCE_NPM, 'package.json'));
const { chromium } = require('playwright-core');
const axe = fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

const FLAGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--no-first-run'];

const [scenario, link, ...args] = process.argv.slice(2);
const { origin, host } = new URL(link);
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const print = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
const nextLine = async () => (await lines.next()).value;

/** Longest wait for something that a busy machine may delay. */
const PATIENCE = 60_000;

function check(condition, message) {
  if (!condition) throw new Error(message);
}

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: FLAGS });

/** What a page must never do; filled while a scenario runs. */
const faults = [];

/** Messages of the browser about requests that the scenario makes fail. */
const EXPECTED = /Failed to load resource|ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY_RESPONSE|net::ERR_/;

/** A page that reports dialogs, errors, and requests to other hosts. */
async function newPage(context) {
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on('dialog', (dialog) => {
    faults.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on('pageerror', (error) => faults.push(`error: ${error.message}`));
  page.on('console', (message) => {
    if (message.type() === 'error' && !EXPECTED.test(message.text())) faults.push(`console: ${message.text()}`);
  });
  page.on('request', (request) => {
    const url = new URL(request.url());
    if (url.protocol !== 'data:' && url.host !== host) faults.push(`request: ${request.url()}`);
  });
  return page;
}

async function logIn(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, locale: 'en-US', ...options });
  const page = await newPage(context);
  await page.goto(link);
  await page.getByRole('heading', { name: 'Inbox' }).waitFor();
  return { context, page };
}

const scenarios = {
  /** A webhook appears without a reload, also after the courier was killed. */
  async live() {
    const { page } = await logIn();
    check(!page.url().includes('login='), 'the code is still in the address');
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    print({ ready: true });
    await page.getByText(await nextLine()).waitFor();
    print({ seen: true });
    await page.getByText('Reconnecting').waitFor();
    print({ disconnected: true });
    await page.getByText(await nextLine()).waitFor();
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    print({ resumed: true });
  },

  /** Read, claim, reply and done by keyboard. */
  async keyboard() {
    const { page } = await logIn();
    await page.locator('.row').first().waitFor();
    await page.keyboard.press('j');
    const opened = await page.locator('.row.current').getAttribute('data-id');
    await page.keyboard.press('Enter');
    await page.getByRole('button', { name: /Claim/ }).waitFor();
    await page.keyboard.press('c');
    await page.getByText(/ left/).waitFor();
    await page.keyboard.press('r');
    await page.waitForFunction(() => document.activeElement?.id === 'reply');
    // Keys are text inside an input.
    await page.keyboard.type('ceej: fixed');
    await page.keyboard.press('Control+Enter');
    await page.getByText('Reply queued').waitFor();
    await page.keyboard.press('Escape');
    await page.keyboard.press('e');
    await page.locator('.fact .badge', { hasText: 'Done' }).waitFor();
    await page.keyboard.press('Escape');
    await page.waitForFunction((id) => document.activeElement?.getAttribute('data-id') === id, opened);
    await page.keyboard.press('?');
    await page.getByRole('dialog').waitFor();
    print({ mail: opened });
  },

  /** Opens every view of a hub with hostile texts. */
  async hostile() {
    const { page } = await logIn();
    for (const address of args) {
      await page.goto(`${origin}/${address}`);
      await page.reload();
      await page.locator('h1').first().waitFor();
      await page.waitForLoadState('networkidle', { timeout: 3000 }).catch(() => {});
      check((await page.locator('img, svg, script:not([src]), object, embed').count()) === 0, `${address}: foreign element`);
      for (const frame of page.frames().slice(1)) {
        check((await frame.locator('script, img, svg, iframe, object, embed, meta[http-equiv]').count()) === 0, `${address}: foreign element in the frame`);
      }
    }
    print({ views: args.length });
  },

  /** axe-core on every view in both themes, and screenshots of each, wide and narrow. */
  async views() {
    const [out, ...addresses] = args;
    fs.mkdirSync(out, { recursive: true });
    const { context, page } = await logIn();
    const found = [];
    for (const address of addresses) {
      for (const theme of ['light', 'dark']) {
        await page.emulateMedia({ colorScheme: theme, reducedMotion: 'reduce' });
        const show = async (width, height) => {
          await page.setViewportSize({ width, height });
          await page.goto(`${origin}/${address}`);
          await page.reload();
          await page.locator('h1').first().waitFor();
          await page.getByText('Loading …').waitFor({ state: 'detached' });
          await page.waitForLoadState('networkidle', { timeout: 1000 }).catch(() => {});
        };
        await show(1280, 800);
        // The list, and one of its entries.
        const [, view, opened] = /^#\/([a-z]+)(\/?)/.exec(address);
        const name = opened ? `${view}-one` : view;
        await page.screenshot({ path: `${out}/${name}-${theme}-wide.png` });
        // The policy of the page forbids a script element; the debugger may evaluate.
        await page.evaluate(axe);
        const result = await page.evaluate(() => globalThis.axe.run(document, { iframes: false }));
        for (const it of result.violations) found.push(`${address} ${theme} ${it.id}: ${it.nodes.slice(0, 3).map((node) => node.html).join(' ')}`);
        await show(390, 844);
        await page.screenshot({ path: `${out}/${name}-${theme}-narrow.png` });
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        if (width > 390) found.push(`${address}: ${width} px wide on a narrow screen`);
      }
    }
    await context.close();
    print({ violations: found });
  },

  /** Another server on this machine gets no cookie and cannot act; a code works once. */
  async others() {
    const seen = [];
    const other = http.createServer((request, response) => {
      seen.push(request.headers.cookie ?? '');
      response.setHeader('content-type', 'text/html');
      response.end('<!doctype html><title>other</title>');
    });
    await new Promise((done) => other.listen(0, '127.0.0.1', done));
    const { context, page } = await logIn();
    const cookies = await context.cookies();
    check(cookies.length === 1 && cookies[0].httpOnly && cookies[0].sameSite === 'Strict', 'the cookie is not protected');
    check(await page.evaluate(() => document.cookie) === '', 'scripts see the cookie');
    const attacker = await context.newPage();
    for (const name of ['localhost', '127.0.0.1', 'evil.localhost']) {
      await attacker.goto(`http://${name}:${other.address().port}/`);
      for (const attempt of [
        { method: 'GET' }, { method: 'POST', body: '{}', headers: { 'content-type': 'application/json' } },
        { method: 'POST', body: '{}', headers: { 'content-type': 'text/plain' }, mode: 'no-cors' },
      ]) {
        const answer = await attacker.evaluate(async ([url, options]) => {
          try {
            const response = await fetch(url, { credentials: 'include', ...options });
            return response.type === 'opaque' ? 'opaque' : response.status;
          } catch {
            return 'failed';
          }
        }, [`${origin}/api/v1/mailbox/rebuild`, attempt]);
        check(answer === 'failed' || answer === 'opaque', `${name}: ${answer}`);
      }
    }
    check(seen.length > 0 && seen.every((cookie) => cookie === ''), `cookies at another server: ${seen}`);
    const again = await browser.newContext();
    const late = await again.newPage();
    await late.goto(link);
    await late.getByText('This browser is not logged in').waitFor();
    other.close();
    print({ requests: seen.length });
  },

  /** Two browsers answer one approval: one wins, the other is told who. */
  async approvals() {
    const [secondLink, id] = args;
    const { page } = await logIn();
    const context = await browser.newContext({ locale: 'en-US' });
    const late = await newPage(context);
    // The second browser does not hear that the first one has answered.
    await late.route('**/api/v1/events**', (route) => (route.request().headers().accept === 'text/event-stream' ? route.abort() : route.continue()));
    await late.goto(secondLink);
    await late.getByRole('heading', { name: 'Inbox' }).waitFor();
    for (const it of [page, late]) {
      await it.goto(`${origin}/#/approvals/${id}`);
      await it.getByRole('button', { name: 'Reject' }).waitFor();
    }
    await page.keyboard.press('a');
    await page.locator('h1 .badge', { hasText: 'Approved' }).waitFor();
    await late.getByRole('button', { name: 'Reject' }).click();
    await late.getByText('Already answered by owner: Approved').waitFor();
    print({ answered: true });
  },

  /** A list with many Mails has few elements, and the first view is a small transfer. */
  async many() {
    const { page } = await logIn();
    await page.locator('.row').nth(10).waitFor();
    // Again, with a login and an empty cache: what a first view transfers.
    const session = await page.context().newCDPSession(page);
    await session.send('Network.enable');
    await session.send('Network.setCacheDisabled', { cacheDisabled: true });
    let bytes = 0;
    session.on('Network.loadingFinished', (event) => {
      bytes += event.encodedDataLength;
    });
    await page.reload();
    await page.locator('.row').nth(10).waitFor();
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    const times = await page.evaluate(() => ({
      paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime, rows: performance.now() }));
    const rows = await page.locator('.row').count();
    const transferred = bytes;
    await page.getByRole('button', { name: /Older/ }).click();
    await page.getByRole('button', { name: /Newest/ }).waitFor();
    print({ rows, older: await page.locator('.row').count(), transferred, first_paint_ms: Math.round(times.paint), rows_ms: Math.round(times.rows) });
  },

  /** Words, filters, marked matches and pages of the search; the query is in the address. */
  async search() {
    const { page } = await logIn();
    await page.locator('.row').first().waitFor();
    await page.goto(`${origin}/#/health`);
    await page.getByRole('heading', { name: 'Health' }).waitFor();
    await page.keyboard.press('/');
    await page.getByText('Search in all messages').waitFor();
    await page.getByRole('searchbox').fill('deploy');
    await page.keyboard.press('Enter');
    await page.locator('mark', { hasText: 'deploy' }).first().waitFor();
    check(page.url().includes('q=deploy'), `the query is not in the address: ${page.url()}`);
    const first = await page.locator('.row').count();
    await page.getByRole('button', { name: /Older/ }).click();
    await page.getByRole('button', { name: /Newest/ }).waitFor();
    await page.locator('mark').first().waitFor();
    const second = await page.locator('.row').count();
    await page.goto(`${origin}/#/search?q=${encodeURIComponent('部署')}`);
    await page.locator('mark', { hasText: '部署' }).first().waitFor();
    const marked = await page.locator('.snippet').innerText();
    await page.getByRole('combobox', { name: 'Time' }).selectOption('1h');
    await page.waitForFunction(() => location.hash.includes('since=1h'));
    await page.locator('mark', { hasText: '部署' }).first().waitFor();
    await page.locator('.row').first().focus();
    await page.keyboard.press('Enter');
    await page.getByRole('button', { name: /Claim/ }).waitFor();
    await page.keyboard.press('Escape');
    await page.locator('.row.current mark').first().waitFor();
    await page.goto(`${origin}/#/search?q=nowhere`);
    await page.getByText('Nothing found').waitFor();
    await page.goto(`${origin}/#/search?q=${encodeURIComponent('"open')}`);
    await page.getByRole('alert').getByText(/quote/).waitFor();
    print({ first, second, marked });
  },

  /** A Mail that no workspace has: the lines that give it to one. */
  async rule() {
    const { page } = await logIn();
    await page.getByRole('button', { name: 'Unrouted' }).click();
    await page.locator('.row').first().waitFor();
    const rows = await page.locator('.row').count();
    await page.keyboard.press('j');
    await page.keyboard.press('Enter');
    await page.getByRole('button', { name: 'Make a rule' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.waitFor();
    const lines = await dialog.locator('pre').first().innerText();
    await dialog.getByRole('button', { name: 'This chat' }).click();
    print({ rows, lines, of_chat: await dialog.locator('pre').first().innerText() });
    await dialog.getByRole('button', { name: 'Close' }).click();
    await nextLine();
    await page.goto(`${origin}/#/inbox?view=unrouted`);
    await page.getByText('Every Mail has a workspace').waitFor();
    print({ routed: true });
  },

  /** What an agent has read, sent and asked for; a rule from its approval. */
  async agent() {
    const [name] = args;
    const { page } = await logIn();
    await page.goto(`${origin}/#/agents`);
    await page.getByRole('link', { name }).click();
    await page.locator('.timeline li').first().waitFor();
    const steps = await page.locator('.timeline .title').allInnerTexts();
    const states = await page.locator('.timeline .badge').allInnerTexts();
    await page.getByRole('link', { name: /^apr_/ }).first().click();
    await page.getByRole('button', { name: 'Make a rule' }).click();
    const lines = await page.getByRole('dialog').locator('pre').first().innerText();
    print({ steps, states, lines });
  },

  /** All dead letters of a cause, after the courier has counted them. */
  async bulk() {
    const { page } = await logIn();
    await page.goto(`${origin}/#/dead`);
    const group = page.locator('.group:not(.uncertain)');
    await group.getByRole('button', { name: 'Drop all of these' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.waitFor();
    const asked = await dialog.innerText();
    await dialog.getByRole('button', { name: 'Drop', exact: true }).click();
    await page.getByText(/^\d+ dropped$/).waitFor();
    await group.waitFor({ state: 'detached' });
    // What may have arrived is apart and still there.
    await page.locator('.group.uncertain').waitFor();
    print({ asked, left: await page.locator('.row').count() });
  },

  /** The couriers of a cluster and their duties, as `/health` reports them. */
  async cluster() {
    const { page } = await logIn();
    const one = { id: '11111111-1111-4111-8111-111111111111', boot: 3, live: true, seen_at: new Date().toISOString(), tunnels: ['ci', 'news'] };
    const two = { id: '22222222-2222-4222-8222-222222222222', boot: 1, live: false, tunnels: ['news'] };
    const duty = (name, courier) => ({ name, courier, epoch: 1, until: new Date().toISOString() });
    const health = await page.evaluate(async () => (await fetch('/health')).json());
    await page.route('**/health', async (route) => {
      const cluster = { courier: one.id, couriers: [one, two], duties: [duty('leader', one.id), duty('tunnel:ci', one.id), { name: 'tunnel:news', epoch: 2 }], database: { version: '15', standbys: [], problems: ['no standby'] } };
      const remote = { address: '0.0.0.0:8646', served: false, problem: 'the certificate has expired' };
      await route.fulfill({ json: { ...health, cluster, remote } });
    });
    await page.goto(`${origin}/#/health`);
    await page.getByRole('heading', { name: 'Couriers' }).waitFor();
    await page.getByText('No courier holds: tunnel:news').waitFor();
    const warnings = await page.locator('.warning').allInnerTexts();
    print({ rows: await page.getByRole('region', { name: 'Couriers' }).locator('tbody tr').allInnerTexts(), warnings });
  },

  /** The couriers that share a database. */
  async couriers() {
    const { page } = await logIn();
    await page.goto(`${origin}/#/health`);
    const rows = page.getByRole('region', { name: 'Couriers' }).locator('tbody tr');
    await rows.nth(1).waitFor();
    print({ rows: await rows.allInnerTexts() });
  },

  /** Very large Mails stay usable. */
  async huge() {
    const [id] = args;
    const { page } = await logIn();
    await page.goto(`${origin}/#/mail/${id}`);
    await page.getByRole('button', { name: /Show more/ }).waitFor();
    const shown = (await page.locator('.messages .text').innerText()).length;
    // The courier makes Mails of at most 500 messages; the page shows longer ones all the same.
    const mail = await page.evaluate(async (path) => (await fetch(path)).json(), `/api/v1/messages/${id}`);
    const message = { from: { id: 'ann', name: 'Ann' }, text: 'hello' };
    mail.msg.content.machine.data.messages = Array.from({ length: 10_000 }, () => message);
    await page.route(`**/api/v1/messages/${id}`, (route) => route.fulfill({ json: mail }));
    await page.reload();
    await page.getByText('1 to 50 of 10000').waitFor();
    const messages = await page.locator('.messages > li').count();
    await page.getByRole('button', { name: 'Later →' }).click();
    await page.getByText('51 to 100 of 10000').waitFor();
    print({ shown, messages, elements: await page.locator('*').count() });
  },

  /** A second tab follows the first; without a cookie both say how to log in. */
  async tabs() {
    const { context, page } = await logIn();
    const second = await newPage(context);
    await second.goto(`${origin}/`);
    for (const tab of [page, second]) await tab.locator('.row').first().waitFor();
    await page.bringToFront();
    await page.keyboard.press('j');
    await page.keyboard.press('c');
    for (const tab of [page, second]) {
      await tab.bringToFront();
      await tab.locator('.row .badge', { hasText: 'Claimed' }).waitFor();
    }
    await context.clearCookies();
    for (const tab of [page, second]) {
      await tab.bringToFront();
      await tab.keyboard.press('j');
      await tab.keyboard.press('e');
      await tab.getByText('This browser is not logged in').waitFor();
    }
    print({ logged_out: 2 });
  },

  /** The courier dies while a request is open: the page says so, keeps the text, and goes on. */
  async dying() {
    const [id] = args;
    const context = await browser.newContext({ locale: 'en-US' });
    // The first reply reaches the courier, and its answer does not come back.
    await context.addInitScript(() => {
      const original = globalThis.fetch;
      let isLost = false;
      globalThis.fetch = async (path, options) => {
        const response = await original(path, options);
        if (isLost || !String(path).endsWith('/reply')) return response;
        isLost = true;
        throw new TypeError('the connection was reset');
      };
    });
    const page = await newPage(context);
    await page.goto(link);
    await page.getByRole('heading', { name: 'Inbox' }).waitFor();
    await page.goto(`${origin}/#/mail/${id}`);
    await page.locator('#reply').fill('fixed in 42');
    await page.keyboard.press('Control+Enter');
    await page.getByText('The courier does not answer').waitFor();
    check(await page.locator('#reply').inputValue() === 'fixed in 42', 'the text is lost');
    print({ told: true });
    await page.getByText('Reconnecting').waitFor();
    print({ disconnected: true });
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    await page.getByRole('button', { name: 'Send' }).click();
    await page.getByText('Reply queued').waitFor();
    print({ queued: true });
  },

  /** While nothing happens, the page makes no request and runs no timer. */
  async idle() {
    const context = await browser.newContext({ locale: 'en-US' });
    await context.addInitScript(() => {
      globalThis.timersFired = 0;
      for (const name of ['setTimeout', 'setInterval']) {
        const original = globalThis[name];
        globalThis[name] = (run, ...rest) => original((...values) => {
          globalThis.timersFired += 1;
          run(...values);
        }, ...rest);
      }
    });
    const page = await newPage(context);
    await page.goto(link);
    await page.getByRole('heading', { name: 'Inbox' }).waitFor();
    const found = {};
    for (const view of ['inbox', 'health', 'dead', 'agents']) {
      await page.goto(`${origin}/#/${view}`);
      await page.locator('h1').first().waitFor();
      await page.locator('.live', { hasText: 'Live' }).waitFor();
      // Quiet when two seconds have passed without a request.
      const quiet = async (time) => page.waitForRequest(() => true, { timeout: time }).then(() => false, () => true);
      for (let round = 0; round < 20 && !(await quiet(2000)); round += 1);
      const before = await page.evaluate(() => globalThis.timersFired);
      const isQuiet = await quiet(4000);
      found[view] = { quiet: isQuiet, timers: (await page.evaluate(() => globalThis.timersFired)) - before };
    }
    print(found);
  },

  /** An open page while nothing happens, until the next line: how long it was busy. */
  async rest() {
    const { page } = await logIn();
    await page.locator('.row').first().waitFor();
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    await page.waitForLoadState('networkidle', { timeout: 5000 }).catch(() => {});
    const session = await page.context().newCDPSession(page);
    await session.send('Performance.enable');
    const busy = async () => (await session.send('Performance.getMetrics')).metrics.find(({ name }) => name === 'TaskDuration').value;
    const before = await busy();
    print({ ready: true });
    await nextLine();
    print({ busy_ms: ((await busy()) - before) * 1000 });
  },

  /** A login that was revoked: the page says what to do. */
  async revoked() {
    const { page } = await logIn();
    print({ ready: true });
    await nextLine();
    await page.getByText('This browser is not logged in').waitFor();
    print({ logged_out: true });
  },
};

try {
  await scenarios[scenario]();
  check(faults.length === 0, faults.join('\n'));
  print({ passed: true });
} catch (error) {
  print({ failed: `${error.message}\n${faults.join('\n')}` });
  process.exitCode = 1;
} finally {
  await browser.close();
  process.stdin.destroy();
}
