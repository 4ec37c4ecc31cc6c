/**
 * The way from the streams of a page to a Multiplexer. Each kind of link finds one in another
 * place, and finds the next one when that has ended.
 *
 * A link is up while there is a Multiplexer. A subclass provides `join` (find one), `leave` and
 * `send` (a message of protocol.js), and calls `markUp` and `markDown`.
 */
export class Link {
  /** The handlers of each stream, by its id. */
  streams = new Map();
  isUp = false;

  /**
   * @param {string} id
   * @param {{ onUp: () => void, onDown: () => void, onPageHide: () => void,
   *   onMessage: (message: object, attempt: number) => void }} stream
   *   `onUp` is called at once if the link is up.
   */
  attach(id, stream) {
    if (!this.streams.size) {
      for (const type of ["pagehide", "pageshow"]) globalThis.addEventListener?.(type, this);
    }
    this.streams.set(id, stream);
    if (this.isUp) stream.onUp();
  }

  detach(id) {
    this.streams.delete(id);
    if (this.streams.size) return;
    for (const type of ["pagehide", "pageshow"]) globalThis.removeEventListener?.(type, this);
  }

  /** There is a Multiplexer, perhaps a new one: every stream tells it its position. */
  markUp() {
    this.isUp = true;
    for (const stream of [...this.streams.values()]) stream.onUp();
  }

  markDown() {
    this.isUp = false;
    for (const stream of [...this.streams.values()]) stream.onDown();
  }

  /** Pass a message of the Multiplexer to the streams that it is for. */
  deliver({ to, message }) {
    for (const [id, attempt] of to) this.streams.get(id)?.onMessage(message, attempt);
  }

  /** Leave with the page, and join again when the page is shown from the back/forward cache. */
  handleEvent({ type, persisted }) {
    if (type === "pageshow") return persisted && this.join();
    for (const stream of this.streams.values()) stream.onPageHide();
    this.leave();
  }
}
