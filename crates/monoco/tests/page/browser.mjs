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
        await page.setViewportSize({ width: 1280, height: 800 });
        await page.goto(`${origin}/${address}`);
        await page.reload();
        await page.locator('h1').first().waitFor();
        await page.getByText('Loading …').waitFor({ state: 'detached' });
        await page.waitForLoadState('networkidle', { timeout: 2000 }).catch(() => {});
        const name = address.replace(/^#\//, '').replace(/[^a-z]+.*$/, '') || 'inbox';
        await page.screenshot({ path: `${out}/${name}-${theme}-wide.png` });
        // The policy of the page forbids a script element; the debugger may evaluate.
        await page.evaluate(axe);
        const result = await page.evaluate(() => globalThis.axe.run(document, { iframes: false }));
        for (const it of result.violations) found.push(`${address} ${theme} ${it.id}: ${it.nodes.slice(0, 3).map((node) => node.html).join(' ')}`);
        await page.setViewportSize({ width: 390, height: 844 });
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

  /** A list with many Mails has few elements. */
  async many() {
    const { page } = await logIn();
    await page.locator('.row').nth(10).waitFor();
    const paint = await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime);
    const rows = await page.locator('.row').count();
    await page.getByRole('button', { name: /Older/ }).click();
    await page.getByRole('button', { name: /Newest/ }).waitFor();
    print({ rows, older: await page.locator('.row').count(), first_paint_ms: Math.round(paint) });
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
