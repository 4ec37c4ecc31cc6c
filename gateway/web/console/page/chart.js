/**
 * A line of the last ten minutes, as one path of SVG.
 *
 * uPlot draws far more than that, with axes, cursors and zoom; its smallest build has 51 kB, this
 * has 1, and needs no styles of its own under a strict Content-Security-Policy.
 */

export const SAMPLES = 120;
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = SAMPLES - 1, HEIGHT = 40;

export class Chart {
  #area = document.createElementNS(SVG, "path");
  #line = document.createElementNS(SVG, "path");

  constructor(svg) {
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    this.#area.setAttribute("class", "area");
    svg.append(this.#area, this.#line);
  }

  /** Shows SAMPLES values, the oldest first. Null leaves a hole. */
  show(values) {
    const top = Math.max(1e-9, ...values) * 1.1;
    let line = "", area = "", last = null;
    values.forEach((value, x) => {
      if (value === null) {
        if (last !== null) area += `V${HEIGHT}`;
        last = null;
        return;
      }
      const y = (HEIGHT - (value / top) * (HEIGHT - 2) - 1).toFixed(2);
      line += `${last === null ? "M" : "L"}${x} ${y}`;
      area += last === null ? `M${x} ${HEIGHT}L${x} ${y}` : `L${x} ${y}`;
      last = x;
    });
    if (last !== null) area += `V${HEIGHT}`;
    this.#line.setAttribute("d", line);
    this.#area.setAttribute("d", area);
  }
}
