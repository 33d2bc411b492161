/**
 * Keeps the listed files for the next visit, each under its hash: only changed files are fetched again. The cache may be full or
 * refused, and the host slow: then files come from the other of the two.
 */

const LIST = "files.json";
const ISOLATED = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" }; // for threads
const PATIENCE = { known: 2000, unknown: 30_000 }; // ms to wait for the host's list, by whether there is one from before
const home = new URL("./", self.location.href), listAddress = new URL(LIST, home);
const CACHE = `t2r-files ${home.pathname}`; // another folder has its own
let known = null; // the newest list, as text: the cache may hold none

self.addEventListener("install", (event) => event.waitUntil(self.skipWaiting()));
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || !url.href.startsWith(home.href)) return;
  const name = decodeURIComponent(url.pathname.slice(home.pathname.length)) || "index.html";
  const answer = name === LIST ? newestList().then((text) => made(text, "application/json")) : file(name, event.request);
  event.respondWith(answer.catch((error) => new Response(String(error), { status: 503 })));
});

/** The result of `work` in the cache; undefined if the cache does not allow it. */
async function inCache(work) {
  try {
    return await work(await caches.open(CACHE));
  } catch {
    return undefined;
  }
}

async function keptList() {
  return known ?? inCache(async (cache) => (await cache.match(listAddress))?.text());
}

/** The host's list; if it fails or is late, the one from before. */
async function newestList() {
  const before = await keptList(), coming = fetchedList(), patience = before ? PATIENCE.known : PATIENCE.unknown;
  const late = new Promise((_, reject) => setTimeout(reject, patience, new Error(`no list after ${patience} ms`)));
  return Promise.race([coming, late]).catch((error) => before ?? Promise.reject(error));
}

/** The host's list, which is then the known one. Files that it does not list leave the cache. */
async function fetchedList() {
  const answer = await fetch(listAddress, { cache: "no-store" });
  if (!answer.ok) throw new Error(`the answer ${answer.status}`);
  const text = await answer.text(), kept = new Set([listAddress.href, ...JSON.parse(text).files.map((entry) => key(entry).href)]);
  known = text;
  await inCache(async (cache) => {
    for (const request of await cache.keys()) if (!kept.has(request.url)) await cache.delete(request);
    await cache.put(listAddress, made(text, "application/json"));
  });
  return text;
}

async function file(name, request) {
  const before = request.mode === "navigate" ? undefined : await keptList();
  const list = before ?? (await newestList().catch(() => null));
  const entry = list && JSON.parse(list).files.find((one) => one.name === name);
  if (!entry) return fetch(request);
  const found = await inCache((cache) => cache.match(key(entry)));
  if (found) return found;
  const answer = await fetch(new URL(encodeURI(name), home), { cache: "no-store" });
  if (!answer.ok) return isolated(answer);
  const bytes = await whole(answer, name), fresh = made(bytes, answer.headers.get("Content-Type"));
  const right = bytes.byteLength === entry.size && (await sha256(bytes)) === entry.sha256;
  if (right) await inCache((cache) => cache.put(key(entry), fresh.clone()));
  return fresh; // if it is wrong, the page reports the error
}

/** All bytes of a response; progress is posted to the pages. */
async function whole(answer, name) {
  const parts = [], reader = answer.body.getReader(), pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  let bytes = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    parts.push(part.value);
    bytes += part.value.length;
    for (const page of pages) page.postMessage({ name, bytes });
  }
  return new Blob(parts).arrayBuffer();
}

function key({ name, sha256: hash }) {
  return new URL(`${encodeURI(name)}?${hash}`, home);
}

function made(body, type) {
  return new Response(body, { headers: { ...ISOLATED, "Content-Type": type ?? "application/octet-stream" } });
}

function isolated(answer) {
  const headers = new Headers(answer.headers);
  for (const [name, value] of Object.entries(ISOLATED)) headers.set(name, value);
  return new Response(answer.body, { status: answer.status, statusText: answer.statusText, headers });
}

async function sha256(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
