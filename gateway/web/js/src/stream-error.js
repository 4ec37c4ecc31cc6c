/** Why the gateway refused something, or why a partition cannot be read. */
export class StreamError extends Error {
  /**
   * @param {{ type?: string, code: string, message?: string, [detail: string]: unknown }} message
   *   Of the gateway. Everything but its type, code and text goes into `details`.
   */
  constructor({ type, code, message, ...details }) {
    super(message ?? code);
    this.name = "StreamError";
    this.code = code;
    this.details = details;
  }
}
