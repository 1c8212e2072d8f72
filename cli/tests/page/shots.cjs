// shots.cjs BROWSER DIR PAGE...: pictures of saved pages, on a desk in the light and on a telephone in the dark (bench/pages.sh).
'use strict';
const { execFileSync } = require('child_process');
const path = require('path');
const puppeteer = require('puppeteer-core');

(async () => {
  const [name, dir, ...files] = process.argv.slice(2);
  const program = execFileSync('which', [name]).toString().trim();
  const browser = await puppeteer.launch({ executablePath: program, args: ['--no-sandbox', '--disable-gpu'], timeout: 120_000 });
  const page = await browser.newPage();
  for (const file of files) {
    for (const [width, height, scheme] of [[1280, 900, 'light'], [1280, 900, 'dark'], [390, 800, 'light'], [390, 800, 'dark']]) {
      await page.setViewport({ width, height });
      await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
      await page.goto('file://' + path.resolve(file));
      const to = path.join(dir, path.basename(file, '.html') + '-' + width + '-' + scheme + '.png');
      await page.screenshot({ path: to });
    }
  }
  await browser.close();
})().catch((e) => { console.error(e); process.exit(1); });
