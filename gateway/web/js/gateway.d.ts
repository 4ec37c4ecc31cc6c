/** Streams of the gateway: records of Kafka in a page or in Node, none lost and none twice. */

/** "connecting" until the stream has begun; "stale" while the gateway cannot read all partitions
 * from Kafka that it read before (the reason is the `code` of the error), and "live" again after
 * that; "reconnecting" after a cut, by itself; "closed" before `connect` and after `close` or an
 * end. */
export type State = "connecting" | "live" | "stale" | "reconnecting" | "closed";

/** Why a stream does not come about, found out after its second failed attempt. The module goes on
 * trying, and calls `onstate` again at the fourth attempt, the eighth and so on.
 *
 * - "unreachable": no server responds at the address, or its certificate is not trusted.
 * - "foreign-origin": it responds, but `access-control` does not let pages of this origin read.
 * - "refused": it responds, but not with a stream.
 * - "proxy-buffering": it responds, but a proxy in between holds the events back. */
export type Trouble = "unreachable" | "foreign-origin" | "refused" | "proxy-buffering";

/** What is known of a state. */
export interface StateDetails {
  /** A `Trouble`; "recovered" if it has passed; else why the gateway ended the stream. */
  reason?: Trouble | "recovered" | (string & {}) | undefined;
  /** With a `Trouble`: how many attempts in a row have failed. */
  attempts?: number;
  /** With a `Trouble`: what happened, with which address, and what to do. */
  hint?: string;
}

/** Any JSON value. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** What a value is compared with. All members of an object must hold. */
export type Condition =
  | string
  | number
  | boolean
  | {
      in?: (string | number | boolean)[];
      prefix?: string;
      exists?: boolean;
      gt?: number;
      gte?: number;
      lt?: number;
      lte?: number;
    };

/** Which records match. All parts must hold; in a list of filters, one filter must. */
export interface Filter {
  key?: Condition;
  headers?: Record<string, Condition>;
  /** By JSON pointer: `{ "/amount": { gte: 10 } }`. */
  value?: Record<string, Condition>;
}

/** What a stream shows. `null` removes the filter or the choice of fields. */
export interface View {
  path?: string;
  filter?: Filter | Filter[] | null;
  /** JSON pointers of the parts to keep of each value. */
  fields?: string[] | null;
}

/** The place of a record or a gap in its stream. */
export interface Context {
  /** The position to resume from once this has been handled. Keep the whole text. */
  position: string | null;
  /** The stream's `id`. */
  id: string;
}

/** Records that the stream does not get: offsets `from` (inclusive) to `to` (exclusive). With the
 * reason `position-refused` the rest is null: the gateway could not use the position, and the
 * stream started where it starts without one. */
export interface Gap {
  topic: string | null;
  partition: number | null;
  from: number | null;
  to: number | null;
  reason:
    | "retention"
    | "skipped"
    | "truncated"
    | "recreated"
    | "compacted"
    | "corrupt"
    | "too-large"
    | "position-refused"
    | (string & {});
}

/** The stream has begun: for the first time, again after a cut, or (`changed`) with another view,
 * which all that follows belongs to. */
export interface Begin {
  topics: string[];
  /** The number of partitions of each topic. */
  partitions: Record<string, number>;
  /** Partitions that cannot be read yet. All of their records come later. */
  pending: { topic: string; partition: number }[];
  /** "batch": after a cut, records since the last position may come again. */
  resume: "exact" | "batch";
  /** Seconds after which an idle stream gets a heartbeat. */
  heartbeat?: number;
  view?: "changed";
  changed?: true;
}

/** A partition that was pending can be read. */
export interface Ready {
  topic: string;
  partition: number;
  offset: number;
  resolved: "exact" | "approximate";
}

/** A record to write. */
export interface Produce {
  /** One of the route's topics, if it has several. */
  topic?: string;
  key?: string | null;
  /** Text is written as it is, null as a tombstone, any other JSON as compact text. */
  value: Json;
  headers?: Record<string, string>;
  /** Whether key and value are base64. */
  base64?: boolean;
  /** Chosen for you. Give one only to repeat a write whose promise was rejected. */
  idempotencyKey?: string;
}

/** Where a record was written. */
export interface Produced {
  topic: string;
  partition: number;
  offset: number;
  /** It had been written already, before the connection was cut. */
  repeated?: true;
}

/** Where a page keeps its position. `load` is called once, `save` a few times a second at most. */
export interface Store {
  load(): string | null | undefined | Promise<string | null | undefined>;
  save(position: string | null): unknown;
}

/** Callbacks. For each there is also an event, whose name is without `on`. */
export interface Callbacks<T> {
  onrecord?(this: Stream<T>, record: T, context: Context): void;
  /** A tombstone: the key, or the object of the route's format. */
  ondelete?(this: Stream<T>, record: any, context: Context): void;
  ongap?(this: Stream<T>, gap: Gap, context: Context): void;
  /** The snapshot is complete. What follows is live. */
  onsnapshot?(this: Stream<T>, snapshot: Record<string, any>, context: Context): void;
  onbegin?(this: Stream<T>, begin: Begin, context: Context): void;
  onready?(this: Stream<T>, ready: Ready, context: Context): void;
  /** The state changed, or (with a `hint`, in the same state) this is why it does not. */
  onstate?(this: Stream<T>, state: State, about: StateDetails): void;
  /** A partition cannot be read for now, while the stream goes on; or a stream that never began
   * does not come about (once, with a `Trouble` as its code, while the module goes on trying); or
   * `token` or `store.load` failed; or this is why the stream was closed. */
  onerror?(this: Stream<T>, error: StreamError | Error): void;
  /** The position moved: all that comes before it has been delivered. */
  onposition?(this: Stream<T>, position: string | null): void;
}

export interface Options<T = any> extends Callbacks<T> {
  /** The gateway's address, if it is not the root of the page's origin: "https://host/prefix". */
  base?: string;
  /** Where to start without a position: "live", "earliest", an ISO 8601 time, or a time before now
   * ("-5m"). */
  from?: string;
  filter?: Filter | Filter[];
  fields?: string[];
  /** Return a record for its JSON text; JSON.parse by default, which rounds numbers of over 53 bits.
   * A record that is text comes as a JSON string. */
  parse?: (text: string) => T;
  /** The position to resume from. See also `store`. */
  position?: string | null;
  store?: Store;
  /** How many records may wait in memory until the page has handled them. Useful with
   * `for await`, which otherwise queues without a limit. WebSocket only. */
  credit?: number;
  /** Return a JWT. Called at the start, before the last one expires, and when the gateway refuses
   * it. */
  token?: () => string | Promise<string>;
  /** auto: WebSocket, or EventSource if no WebSocket comes through. */
  transport?: "auto" | "eventsource" | "websocket";
  /** Whether an EventSource to another origin sends cookies. */
  credentials?: boolean;
  /** Who shares the connection. true: all tabs of the origin, through a SharedWorker ("worker")
   * or else an elected tab ("channel"), or else the streams of the page ("page"). A page of another
   * origin than this file's has no worker. false: the stream has its own connection. */
  share?: boolean | "worker" | "channel" | "page";
  /** The URL of this file, for the worker, if a bundler has included it in the page's script. */
  worker?: string;
  /** Implementations for Node: of WebSocket before Node 22, of EventSource in any version. With
   * these, connections are shared within the page only. */
  WebSocket?: new (url: string, protocols: string[]) => any;
  EventSource?: new (url: string, options: { withCredentials: boolean }) => any;
}

/** What `for await` yields. Each of them has also been given to its callback. */
export type Item<T> =
  | { type: "record"; record: T; position: string | null }
  | { type: "delete"; delete: any; position: string | null }
  | { type: "gap"; gap: Gap; position: string | null }
  | { type: "snapshot"; snapshot: Record<string, any>; position: string | null };

interface Events<T> {
  record: CustomEvent<Context & { record: T }>;
  delete: CustomEvent<Context & { delete: any }>;
  gap: CustomEvent<Context & { gap: Gap }>;
  snapshot: CustomEvent<Context & { snapshot: Record<string, any> }>;
  begin: CustomEvent<Context & { begin: Begin }>;
  ready: CustomEvent<Context & { ready: Ready }>;
  state: CustomEvent<StateDetails & { state: State }>;
  error: CustomEvent<{ error: StreamError | Error }>;
  position: CustomEvent<{ position: string | null }>;
}

/** One stream of the gateway, closed until `connect`. */
export class Stream<T = any> extends EventTarget implements AsyncIterable<Item<T>> {
  /** Create a stream; `connect` starts it.
   *
   * @param path Of a route ("/events/orders", also with a query), or a whole URL.
   * @throws TypeError if the options contradict each other. */
  constructor(path: string, options?: Options<T>);

  readonly id: string;
  readonly state: State;
  /** The position after all that has been delivered to the page. */
  readonly position: string | null;

  /** Start the stream, or after `close` continue from its position. */
  connect(): this;
  /** End the stream. It keeps its position. */
  close(): void;
  /** Change the view. No record that matches both views is lost. If the gateway refuses, there is
   * an error, and the stream keeps its view. */
  change(view: View): void;
  /** Write a record, where the route has `produce: true`. The write is repeated after a cut until
   * it is answered, and the record is written once. Rejects with a StreamError, whose
   * `idempotencyKey` allows you to repeat the write. Needs no `connect`. */
  produce(record: Produce): Promise<Produced>;

  /** Connect, and iterate over all items in order. Leaving the loop closes the stream. */
  [Symbol.asyncIterator](): AsyncIterator<Item<T>, undefined>;

  addEventListener<K extends keyof Events<T>>(
    type: K,
    listener: (event: Events<T>[K]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
}

/** Return a new Stream, connected. */
export function connect<T = any>(path: string, options?: Options<T>): Stream<T>;

/** Why the gateway refused something, or why a partition cannot be read. */
export class StreamError extends Error {
  constructor(message: { code: string; message?: string; [name: string]: unknown });
  /** The kind of error: a `Trouble`, or unknown-path, unknown-topic, unauthorized, forbidden,
   * bad-request, kafka-unavailable... */
  code: string;
  /** Everything else that the gateway said: topic, partition, status... */
  details: Record<string, unknown>;
  /** The key of a write that was refused. */
  idempotencyKey?: string;
}
