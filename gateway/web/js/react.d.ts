/** A React hook for streams of the gateway. Needs React 18 or newer. */
import type { Callbacks, Filter, Gap, Options, State, StateDetails, StreamError } from "./gateway.js";

/** Options of the hook: those of a `Stream`, without its callbacks and its position. `filter` and
 * `fields` may change at any time, and the connection stays: `records` begins anew with the other
 * view. All other options count when the component mounts. */
export interface UseStreamOptions<T = any>
  extends Omit<Options<T>, keyof Callbacks<T> | "credit" | "fields" | "filter" | "position" | "store"> {
  filter?: Filter | Filter[] | null | undefined;
  /** JSON pointers of the parts to keep of each value. */
  fields?: string[] | null | undefined;
  /** How many of the newest records are kept; 100 by default. */
  limit?: number;
  /** A name under which records and position are kept in sessionStorage, so that a reload, or
   * mounting again, continues from there. */
  keep?: string;
}

/** What a component shows of a stream. */
export interface StreamView<T> {
  /** The newest record first. */
  records: readonly T[];
  /** Records that will not come; the newest last, at most 100. */
  missed: readonly Gap[];
  state: State;
  /** Why the stream does not come about, with a hint for developers; null once it has. */
  trouble: StateDetails | null;
  /** The last error, such as the one that closed the stream. */
  error: StreamError | Error | null;
}

/** Return what to show of a stream, which is open while the component is mounted. The component
 * renders at most once a frame. `path` may change like `filter`. */
export function useStream<T = any>(path: string, options?: UseStreamOptions<T>): StreamView<T>;
