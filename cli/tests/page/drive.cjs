// drive.cjs BROWSER URL: uses the page as people do, and prints what it saw as one line of JSON.
'use strict';
const fs = require('fs');
const { execFileSync } = require('child_process');
const puppeteer = require('puppeteer-core');
const axe = fs.readFileSync(require.resolve('axe-core'), 'utf8');

const violations = async (page, where) => {
  await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
  return found.violations.map((v) => where + ': ' + v.id + ' ' + v.nodes.map((n) => n.target.join(' ')).slice(0, 5).join(', '));
};
const overflow = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

(async () => {
  const [name, url] = process.argv.slice(2);
  const program = execFileSync('which', [name]).toString().trim();
  const browser = await puppeteer.launch({ executablePath: program, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'], timeout: 120_000 });
  const page = await browser.newPage();
  page.setDefaultTimeout(120_000);
  const said = { errors: [], elsewhere: [], violations: [], overflow: {} };
  page.on('pageerror', (e) => said.errors.push(e.message));
  page.on('console', (m) => { if (m.type() === 'error') said.errors.push(m.text()); });
  page.on('request', (r) => { if (!r.url().startsWith(url) && !r.url().startsWith('data:')) said.elsewhere.push(r.url()); });
  await page.setViewport({ width: 1280, height: 900 });
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'light' }]);
  await page.goto(url);

  // An incident is a bar in its lane; a click shows its time, and the diagnosis of when it was worst.
  await page.waitForSelector('.curve canvas');
  await page.waitForSelector('.lane button');
  said.lane = await page.$eval('.lane .name', (e) => e.textContent);
  // It follows what is being recorded, and keeps the hour that it wants.
  const words = await page.$eval('#range', (e) => e.textContent);
  await page.waitForFunction((was) => document.querySelector('#range').textContent !== was, {}, words);
  // What is drawn anew is the same element: a person is clicking it.
  const bar = await page.$('.lane button');
  const drawn = () => page.waitForResponse((r) => r.url().includes('/incidents'));
  for (let n = 0; n < 3; n++) await drawn(); // by the last one, that before it was drawn
  said.stays = await bar.evaluate((e) => e.isConnected);
  said.wanted = new URL(page.url()).searchParams.get('last');
  await page.keyboard.press('l');
  said.live = await page.$eval('#follow', (e) => e.getAttribute('aria-pressed'));
  await page.click('.lane button');
  await page.waitForFunction(() => document.querySelector('#said-page').contentDocument.querySelector('article'));
  said.incident = await page.$eval('#said-page', (frame) => frame.contentDocument.querySelector('article').id);
  said.violations.push(...(await violations(page, 'light, with a diagnosis')));
  await page.keyboard.press('Escape');
  said.closed = await page.$eval('#said', (e) => e.hidden);

  // A range is dragged over a curve: it is what is shown then, and what is diagnosed.
  const shown = () => new URLSearchParams(new URL(page.url()).search);
  const box = await (await page.$('.u-over')).boundingBox();
  const before = shown();
  const y = box.y + box.height / 2;
  await page.mouse.move(box.x + box.width * 0.25, y);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.5, y, { steps: 5 });
  await page.mouse.move(box.x + box.width * 0.75, y, { steps: 5 });
  await page.mouse.up();
  await page.waitForFunction((was) => location.search !== '?' + was, {}, before.toString());
  const after = shown();
  const span = (q) => Number(q.get('to')) - Number(q.get('from'));
  said.dragged = span(after) / span(before);
  await page.keyboard.press('d');
  await page.waitForFunction(() => !document.querySelector('#said').hidden && document.querySelector('#said-page').contentDocument.querySelector('#verdict'));
  said.diagnosed = await page.$eval('#said-range', (e) => e.textContent);
  said.link = await page.$eval('#said-link', (e) => e.getAttribute('href'));

  // The same address shows the same, in the dark and on a telephone as well.
  const link = page.url();
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'dark' }]);
  await page.setViewport({ width: 390, height: 800 });
  await page.goto(link);
  await page.waitForSelector('.curve canvas');
  await page.waitForSelector('#nodes table');
  said.again = page.url() === link;
  said.overflow.page = await overflow(page);
  said.violations.push(...(await violations(page, 'dark, 390 px')));

  // Without script.
  await page.setJavaScriptEnabled(false);
  await page.goto(url);
  said.without = await page.evaluate(() => document.querySelector('noscript a[href="/charts"]') !== null);
  await page.goto(url + 'charts');
  await page.setJavaScriptEnabled(true);
  said.drawings = (await page.$$('.plot svg')).length;
  said.overflow.charts = await overflow(page);
  said.violations.push(...(await violations(page, '/charts, dark, 390 px')));
  await browser.close();
  console.log(JSON.stringify(said));
})().catch((e) => { console.error(e); process.exit(1); });
