/** Text that flows evenly into an element, however unevenly it arrives, and is spoken by whole sentences. */

const LAG = 400; // ms: approximate maximum delay of the shown text
const NEAR = 60; // pixels: closer to the end than this, the view stays at the end
const SPOKEN = 12; // sentences that a screen reader may still have to read
const END = /[.!?…]["'”’)]*\s/;

export class Flow {
  #place;
  #log;
  #coming = "";
  #unspoken = "";
  #frame = 0;
  #last = 0;
  #smooth = !matchMedia("(prefers-reduced-motion: reduce)").matches;

  /** @param {HTMLElement} place scrolls @param {HTMLElement} log is live, and out of sight */
  constructor(place, log) {
    this.#place = place;
    this.#log = log;
  }

  /** Show the prompt at once. Returns its element. */
  ask(text) {
    return this.#append(Object.assign(document.createElement("span"), { className: "asked", textContent: text }));
  }

  /** Mark the end of a story and the beginning of another. Returns the mark's element. */
  separate() {
    this.flush();
    return this.#append(Object.assign(document.createElement("span"), { className: "break", textContent: "\n\n* * *\n\n" }));
  }

  /** `aloud`: a screen reader hears it too. */
  add(text, aloud = true) {
    this.#coming += text;
    if (aloud) this.#speak(text);
    if (!this.#smooth) this.#show(this.#coming.length);
    else if (!this.#frame) {
      this.#last = performance.now();
      this.#frame = requestAnimationFrame((now) => this.#step(now));
    }
  }

  /** Show and speak all that has arrived. */
  flush() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#show(this.#coming.length);
    if (this.#unspoken.trim()) this.#say(this.#unspoken);
    this.#unspoken = "";
  }

  clear() {
    this.flush();
    this.#place.replaceChildren();
    this.#log.replaceChildren();
  }

  #step(now) {
    const share = Math.min(1, (now - this.#last) / LAG);
    this.#last = now;
    this.#show(Math.ceil(this.#coming.length * share));
    this.#frame = this.#coming ? requestAnimationFrame((next) => this.#step(next)) : 0;
  }

  #show(length) {
    if (!length) return;
    // never split a surrogate pair
    const end = /[\ud800-\udbff]/.test(this.#coming[length - 1]) ? length + 1 : length;
    this.#append(document.createTextNode(this.#coming.slice(0, end)));
    this.#coming = this.#coming.slice(end);
  }

  #append(part) {
    const place = this.#place, atEnd = place.scrollHeight - place.scrollTop - place.clientHeight < NEAR;
    if (part.nodeType === Node.TEXT_NODE && place.lastChild?.nodeType === Node.TEXT_NODE && place.lastChild.length < 2000) {
      place.lastChild.appendData(part.data);
    } else {
      place.append(part);
    }
    if (atEnd) place.scrollTop = place.scrollHeight;
    return part;
  }

  #speak(text) {
    this.#unspoken += text;
    for (let found = END.exec(this.#unspoken); found; found = END.exec(this.#unspoken)) {
      const end = found.index + found[0].length;
      this.#say(this.#unspoken.slice(0, end));
      this.#unspoken = this.#unspoken.slice(end);
    }
  }

  #say(words) {
    this.#log.append(Object.assign(document.createElement("p"), { textContent: words.trim() }));
    while (this.#log.children.length > SPOKEN) this.#log.firstChild.remove();
  }
}
