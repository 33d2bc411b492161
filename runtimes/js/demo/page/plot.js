/** A curve of numbers against positions in an <svg>, with as many points as pixels: it costs the same for any length. */

const WIDTH = 400, HEIGHT = 176, LEFT = 44, RIGHT = 8, TOP = 12, BOTTOM = 22;
const POINTS = 240;
const NAMESPACE = "http://www.w3.org/2000/svg";

export class Plot {
  #svg;
  #what;
  #curves = {};

  /** @param {SVGElement} svg @param {string} what is drawn, for somebody who does not see it */
  constructor(svg, what) {
    this.#svg = svg;
    this.#what = what;
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.clear();
  }

  clear() {
    this.#curves = {};
    this.draw();
  }

  /** Another point of a curve. Neighbours are averaged two by two where they become more than POINTS. */
  add(name, position, value) {
    const curve = (this.#curves[name] ??= { points: [], step: 1, waiting: [] });
    curve.waiting.push([position, value]);
    if (curve.waiting.length < curve.step) return;
    curve.points.push(mean(curve.waiting));
    curve.waiting = [];
    if (curve.points.length > POINTS) {
      curve.points = Array.from({ length: POINTS / 2 }, (_, n) => mean(curve.points.slice(2 * n, 2 * n + 2)));
      curve.step *= 2;
    }
  }

  draw() {
    const points = Object.values(this.#curves).flatMap((curve) => curve.points);
    const across = nice(Math.max(1, ...points.map(([position]) => position)));
    const up = nice(Math.max(1e-3, ...points.map(([, value]) => value)));
    const place = ([position, value]) =>
      `${(LEFT + (position / across) * (WIDTH - LEFT - RIGHT)).toFixed(1)},${(HEIGHT - BOTTOM - (value / up) * (HEIGHT - TOP - BOTTOM)).toFixed(1)}`;
    const parts = [
      element("title", { id: `${this.#svg.id}-title` }, this.#said(points)),
      element("path", { class: "axis", d: `M${LEFT},${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}` }),
      element("text", { x: LEFT - 6, y: TOP + 4, "text-anchor": "end" }, shown(up)),
      element("text", { x: LEFT - 6, y: HEIGHT - BOTTOM, "text-anchor": "end" }, "0"),
      element("text", { x: WIDTH - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, `${shown(across)} tokens`),
    ];
    for (const [name, curve] of Object.entries(this.#curves)) {
      parts.push(element("polyline", { class: name, points: curve.points.map(place).join(" ") }));
    }
    this.#svg.replaceChildren(...parts);
  }

  #said(points) {
    if (!points.length) return `${this.#what}: nothing yet`;
    const last = Object.entries(this.#curves).filter(([, curve]) => curve.points.length);
    return `${this.#what}: ${last.map(([name, { points: all }]) => `${name} ${shown(all.at(-1)[1])} at token ${Math.round(all.at(-1)[0])}`).join(", ")}`;
  }
}

function mean(points) {
  return [0, 1].map((n) => points.reduce((all, point) => all + point[n], 0) / points.length);
}

/** The next of 1, 2, 5, 10, … */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value * 0.999);
}

function shown(value) {
  return value >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(2)));
}

function element(name, attributes, text = "") {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}
