/**
 * node browser/pictures.js WEB: pictures of a packed page, with its numbers after TOKENS tokens: demo/page/card.png
 * for link previews, and docs/plots/page.png. WEB is a folder that demo/make_web.py wrote.
 */

import { fileURLToPath } from "node:url";

import { done, launch, settings, visitIn } from "./page.js";

const TOKENS = 10_000;
const CARD = fileURLToPath(new URL("../demo/page/card.png", import.meta.url));
const PAGE = fileURLToPath(new URL("../../../docs/plots/page.png", import.meta.url));

const [web] = process.argv.slice(2);
if (!web) {
  console.error("usage: node browser/pictures.js WEB");
  process.exit(2);
}
const browser = await launch();
try {
  await visitIn(browser, web, { viewport: { width: 1200, height: 630 } }, async ({ page }) => {
    page.setDefaultTimeout(0);
    await settings(page, { tokens: TOKENS });
    await page.click("#write");
    await done(page);
    await page.evaluate(() => (document.body.className = "picture"));
    await page.screenshot({ path: CARD });
  });
  await visitIn(browser, web, { viewport: { width: 1280, height: 900 } }, async ({ page }) => {
    page.setDefaultTimeout(0);
    await settings(page, { tokens: 400 });
    await page.evaluate(() => (document.querySelector("details").open = false));
    for (const button of [".chip", "#race"]) {
      await page.click(button);
      await done(page);
    }
    await page.screenshot({ path: PAGE, fullPage: true });
  });
} finally {
  await browser.close();
}
