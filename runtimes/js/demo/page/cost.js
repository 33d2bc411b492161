/** The counter of a page: the memory of all that was read, and what a softmax model would hold. */

import { amount, counted } from "./sentences.js";

/** @param {{ position: number, bytes: number }} cost @param {number} perToken bytes that softmax would add with each token */
export function showCost({ position, bytes }, perToken) {
  const shown = { count: counted(position), held: amount(bytes), would: amount(perToken * position) };
  for (const [id, text] of Object.entries(shown)) document.getElementById(id).textContent = text;
}
