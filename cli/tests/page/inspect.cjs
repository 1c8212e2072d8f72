// inspect.cjs BROWSER PAGE: opens a saved page on a desk and on a telephone, in the light and in the dark, and prints one list, as JSON:
// the page as the browser has it; then what axe-core finds, and how much wider than the window it is.
'use strict';
const fs = require('fs');
const { execFileSync } = require('child_process');
const puppeteer = require('puppeteer-core');
const axe = fs.readFileSync(require.resolve('axe-core'), 'utf8');

(async () => {
  const [name, file] = process.argv.slice(2);
  const program = execFileSync('which', [name]).toString().trim();
  const browser = await puppeteer.launch({ executablePath: program, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'], timeout: 120_000 });
  const page = await browser.newPage();
  page.setDefaultTimeout(120_000);
  const found = [];
  let dom;
  page.on('pageerror', (e) => found.push('error: ' + e.message));
  for (const [width, scheme] of [[1280, 'light'], [1280, 'dark'], [390, 'light'], [390, 'dark']]) {
    const where = width + ' px, ' + scheme + ': ';
    await page.setViewport({ width, height: 900 });
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
    await page.goto('file://' + file);
    dom ??= await page.content();
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    if (wider > 0) found.push(where + wider + ' px wider than the window');
    await page.evaluate(axe);
    const said = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
    for (const v of said.violations) {
      found.push(where + v.id + ' ' + v.nodes.map((n) => n.target.join(' ') + (n.any[0] ? ' (' + n.any[0].message + ')' : '')).slice(0, 4).join(', '));
    }
  }
  await browser.close();
  console.log(JSON.stringify([dom, ...found]));
})().catch((e) => { console.error(e); process.exit(1); });
