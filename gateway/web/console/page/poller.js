/** Reads something while it is looked at, and lets the latest request win. */

export class Poller {
  #load;
  #intervalMs;
  #timer = null; // null while nobody looks
  #round = 0;

  /**
   * @param load called with a function that tells whether its answer is still wanted.
   * @param intervalMs until it is read again; null for only when it is asked for.
   */
  constructor(load, intervalMs = null) {
    this.#load = load;
    this.#intervalMs = intervalMs;
  }

  start() {
    if (this.#timer === null) this.run();
  }

  stop() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#round += 1;
  }

  /** Reads now, and the next time after the interval. */
  async run() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const round = (this.#round += 1);
    const isCurrent = () => round === this.#round;
    await this.#load(isCurrent);
    if (isCurrent() && this.#intervalMs) this.#timer = setTimeout(() => this.run(), this.#intervalMs);
  }
}
