/** The files of a page: their list, download progress, and caching for the next visit. */

import { failure } from "./sentences.js";

const LISTED = 30_000; // ms to wait for the list

/** files.json, and the model's size. @throws {Error} file, list */
export async function listed() {
  const answer = await fetch("files.json", { cache: "no-store", signal: AbortSignal.timeout(LISTED) }).catch((error) => {
    throw failure("file", error.message);
  });
  if (!answer.ok) throw failure("file", `the answer ${answer.status}`);
  const list = await answer.json().catch((error) => {
    throw failure("list", error.message);
  });
  if (!Array.isArray(list?.files) || typeof list.graph !== "string") throw failure("list", "no list of files");
  const ofModel = list.files.filter(({ name }) => isOfModel(list, name));
  return { ...list, modelBytes: ofModel.reduce((all, file) => all + file.size, 0) };
}

/**
 * Show download progress of the model and of ONNX Runtime, reported by the service worker, until the returned function is
 * called. Without a service worker, the bar is indeterminate.
 */
export function showDownload(list, status, bar) {
  const sizes = new Map(list.files.map(({ name, size }) => [name, size]));
  const wanted = new Set(list.files.map(({ name }) => name).filter((name) => isOfModel(list, name)));
  const come = new Map();
  let shown = -1;
  const hear = ({ data: { name, bytes } }) => {
    if (!wanted.has(name) && !name?.endsWith(".wasm")) return;
    wanted.add(name);
    come.set(name, bytes);
    const [sum, total] = [come, new Map([...wanted].map((one) => [one, sizes.get(one) ?? 0]))].map((all) =>
      [...all.values()].reduce((before, one) => before + one, 0));
    const now = Math.floor((100 * sum) / total);
    if (now === shown) return;
    shown = now;
    status.textContent = `Loading … ${(sum / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB`;
    bar.max = total;
    bar.value = sum;
  };
  navigator.serviceWorker?.addEventListener("message", hear);
  return () => {
    navigator.serviceWorker?.removeEventListener("message", hear);
    bar.hidden = true;
  };
}

function isOfModel({ graph }, name) {
  return name === graph || name.startsWith(`${graph}.`);
}

const PATIENCE = 3000; // ms: a service worker may never be registered or become ready
const RELOADED = "t2r-reloaded"; // in the tab's storage: reload only once

/**
 * A service worker caches files; its responses also carry the headers that threads need, on any host. The first
 * visit, and a reload that bypasses the service worker, lack them: the page reloads once, and runs in one thread
 * if that does not help.
 */
export async function keepFiles() {
  if (!("serviceWorker" in navigator) || !window.isSecureContext) return;
  const had = navigator.serviceWorker.controller;
  const ready = navigator.serviceWorker.register("sw.js").then(() => navigator.serviceWorker.ready);
  await Promise.race([ready, new Promise((resolve) => setTimeout(resolve, PATIENCE))]);
  if (window.crossOriginIsolated) sessionStorage.removeItem(RELOADED);
  else if (!had && !sessionStorage.getItem(RELOADED)) {
    sessionStorage.setItem(RELOADED, "yes");
    location.reload();
    await new Promise(() => {});
  }
}
