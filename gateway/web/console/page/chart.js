/**
 * A line of the last two minutes, as one path of SVG.
 *
 * uPlot draws far more than that, with axes, cursors and zoom; its smallest build has 51 kB, this
 * has 1.5, and needs no styles of its own under a strict Content-Security-Policy.
 */

const SAMPLES = 120;
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = SAMPLES - 1, HEIGHT = 40;

export class Chart {
  #area = document.createElementNS(SVG, "path");
  #line = document.createElementNS(SVG, "path");
  #values = [];
  #svg;
  #label;

  constructor(svg) {
    this.#svg = svg;
    this.#label = svg.getAttribute("aria-label");
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    this.#area.setAttribute("class", "area");
    svg.append(this.#area, this.#line);
  }

  /** Adds the value of one second. Null leaves a hole. `text` is read out with the label. */
  add(value, text) {
    this.#values.push(value ?? null);
    if (this.#values.length > SAMPLES) this.#values.shift();
    this.#svg.setAttribute("aria-label", `${this.#label}: now ${text}`);
    if (!document.hidden) this.draw();
  }

  draw() {
    const top = Math.max(1e-9, ...this.#values) * 1.1;
    const first = SAMPLES - this.#values.length;
    let line = "", area = "", last = null;
    this.#values.forEach((value, index) => {
      if (value === null) {
        if (last !== null) area += `V${HEIGHT}`;
        last = null;
        return;
      }
      const x = first + index, y = (HEIGHT - (value / top) * (HEIGHT - 2) - 1).toFixed(2);
      line += `${last === null ? "M" : "L"}${x} ${y}`;
      area += last === null ? `M${x} ${HEIGHT}L${x} ${y}` : `L${x} ${y}`;
      last = x;
    });
    if (last !== null) area += `V${HEIGHT}`;
    this.#line.setAttribute("d", line);
    this.#area.setAttribute("d", area);
  }
}
