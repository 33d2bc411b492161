/** Curves of numbers against positions in an <svg> of a figure, with as many points as pixels: they cost the same for any length. */

const WIDTH = 440, HEIGHT = 200, LEFT = 58, RIGHT = 14, TOP = 18, BOTTOM = 28;
const POINTS = 240, AROUND = 9; // points on either side, of which the median is drawn
const NAMESPACE = "http://www.w3.org/2000/svg";
const NAME = 110; // pixels that a name takes
const NAMES = { ours: "this model", peer: "softmax model" };

export class Plot {
  #svg;
  #what;
  #shown;
  #smooth;
  #subjects = {}; // subject → its curves
  #subject = "story";
  #drawing = false;

  /**
   * @param {SVGElement} svg its figure is hidden while there is nothing to show
   * @param {string} what is drawn, for screen readers
   * @param {(value: number) => string} shown a value with its unit
   * @param {boolean} smooth draw medians: delays of single tokens by a busy machine are not the model's cost
   */
  constructor(svg, what, shown, smooth = false) {
    [this.#svg, this.#what, this.#shown, this.#smooth] = [svg, what, shown, smooth];
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.clear();
  }

  /** Draw another subject from now on: the story or a race. The curves of each are kept until `clear`. */
  turnTo(subject) {
    this.#subject = subject;
    this.#draw();
  }

  /** Forget the curves of the subject. */
  clear() {
    this.#subjects[this.#subject] = {};
    this.#draw();
  }

  get #curves() {
    return (this.#subjects[this.#subject] ??= {});
  }

  /** Add a point to a curve. Beyond POINTS points, neighbours are averaged in pairs. */
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
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      this.#draw();
    });
  }

  #draw() {
    const curves = Object.entries(this.#curves).map(([name, { points }]) => [name, this.#smooth ? medians(points) : points]);
    const points = curves.flatMap(([, all]) => all);
    const across = nice(Math.max(1, ...points.map(([position]) => position)));
    this.#svg.closest("figure").hidden = !points.length;
    const up = nice(1.05 * Math.max(1e-3, ...points.map(([, value]) => value)));
    const x = (position) => LEFT + (position / across) * (WIDTH - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (value / up) * (HEIGHT - TOP - BOTTOM);
    const parts = [element("title", { id: `${this.#svg.id}-title` }, this.#said(curves))];
    for (const share of [0, 0.5, 1]) {
      parts.push(element("path", { class: share ? "grid" : "axis", d: `M${LEFT},${y(share * up)}H${WIDTH - RIGHT}` }));
      parts.push(element("text", { x: LEFT - 8, y: y(share * up) + 4, "text-anchor": "end" }, share ? this.#shown(share * up).replace(".0 ", " ") : "0"));
    }
    parts.push(element("text", { x: LEFT, y: HEIGHT - 8 }, "0"));
    parts.push(element("text", { x: WIDTH - RIGHT, y: HEIGHT - 8, "text-anchor": "end" }, `${across.toLocaleString("en")} tokens`));
    for (const [name, all] of curves) {
      parts.push(element("polyline", { class: name, points: all.map(([position, value]) => `${x(position).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
    }
    parts.push(...labels(curves, x, y));
    this.#svg.replaceChildren(...parts);
  }

  #said(curves) {
    const last = curves.filter(([, points]) => points.length).map(([name, points]) => [name, points.at(-1)]);
    return `${this.#what}: ${last.map(([name, [position, value]]) => `${NAMES[name]} ${this.#shown(value)} at token ${Math.round(position)}`).join(", ")}`;
  }
}

/** The name of each curve after its end, or above it if there is no room. */
function labels(curves, x, y) {
  const ends = curves.filter(([, points]) => points.length).map(([name, points]) => [name, x(points.at(-1)[0]), y(points.at(-1)[1])]);
  return ends.map(([name, right, height]) => {
    const behind = right + NAME < WIDTH;
    const place = behind ? { x: right + 8, y: height + 4 } : { x: right, y: height < TOP + 16 ? height + 18 : height - 10, "text-anchor": "end" };
    return element("text", { class: `label ${name}`, ...place, y: Math.min(place.y, HEIGHT - BOTTOM - 6) }, NAMES[name]);
  });
}

function medians(points) {
  return points.map(([position], n) => {
    const reach = Math.min(AROUND, n, points.length - 1 - n) || Math.min(AROUND, points.length - 1);
    const near = points.slice(Math.max(0, n - reach), n + reach + 1).map(([, value]) => value).sort((a, b) => a - b);
    return [position, near[near.length >> 1]];
  });
}

function mean(points) {
  return [0, 1].map((n) => points.reduce((all, point) => all + point[n], 0) / points.length);
}

/** The next of 1, 2, 3, 4, 6, 8, 10, 20, … : half of it is short too. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 6, 8, 10].map((n) => n * power).find((n) => n >= value * 0.999);
}

function element(name, attributes, text = "") {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}
