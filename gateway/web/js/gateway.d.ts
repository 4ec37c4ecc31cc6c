/** Streams of the gateway: records of Kafka in a page or in Node, none lost and none twice. */

/** "connecting" until it has begun; "reconnecting" by itself; "closed" until `connect`. */
export type State = "connecting" | "live" | "reconnecting" | "closed";

/** The value, for routes of format `value`; else the object of their format. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** What a value is compared with; several of one object are all to hold. */
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

/** All parts are to hold; of a list of filters, one. */
export interface Filter {
  key?: Condition;
  headers?: Record<string, Condition>;
  /** By JSON pointer: `{ "/amount": { gte: 10 } }`. */
  value?: Record<string, Condition>;
}

/** What a stream shows; null takes a filter or the choice of fields away. */
export interface View {
  path?: string;
  filter?: Filter | Filter[] | null;
  /** JSON pointers of what to keep of each value. */
  fields?: string[] | null;
}

/** Where a record or a gap stands. */
export interface Context {
  /** What to resume from once this is dealt with, the newest known: keep the whole text. */
  position: string | null;
  /** The stream's `id`. */
  id: string;
}

/** Records that will not come: offsets `from` (included) to `to` (excluded). With the reason
 * `position-refused` the rest is null: the position was of no use, and the stream began anew. */
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
    | "position-refused"
    | (string & {});
}

/** A stream has begun, at first, after a cut, or (`changed`) with another view: what comes
 * from now on is of the new one. */
export interface Begin {
  topics: string[];
  /** How many each topic has. */
  partitions: Record<string, number>;
  /** Not readable yet; their records come later, all of them. */
  pending: { topic: string; partition: number }[];
  /** "batch": at most what came since the last position comes again after a cut. */
  resume: "exact" | "batch";
  view?: "changed";
  changed?: true;
}

export interface Ready {
  topic: string;
  partition: number;
  offset: number;
  resolved: "exact" | "approximate";
}

/** A record to be written. */
export interface Produce {
  /** One of the route's, if it has several. */
  topic?: string;
  key?: string | null;
  /** Text as it is; null: a tombstone; any other JSON as its compact text. */
  value: Json;
  headers?: Record<string, string>;
  /** Key and value are base64. */
  base64?: boolean;
  /** Made by itself; to be given only to repeat a write whose promise was rejected. */
  idempotencyKey?: string;
}

export interface Produced {
  topic: string;
  partition: number;
  offset: number;
  /** It had been written before the connection was cut. */
  repeated?: true;
}

/** Where a page keeps its position: `load` is asked once, `save` called a few times a second. */
export interface Store {
  load(): string | null | undefined | Promise<string | null | undefined>;
  save(position: string | null): unknown;
}

/** Called as what happens, happens; for each there is an event of the name without `on`. */
export interface Callbacks<T> {
  onrecord?(this: Stream<T>, record: T, context: Context): void;
  /** A tombstone: the key, or the object of the route's format. */
  ondelete?(this: Stream<T>, record: any, context: Context): void;
  ongap?(this: Stream<T>, gap: Gap, context: Context): void;
  /** A snapshot is complete; what follows is live. */
  onsnapshot?(this: Stream<T>, snapshot: Record<string, any>, context: Context): void;
  onbegin?(this: Stream<T>, begin: Begin, context: Context): void;
  onready?(this: Stream<T>, ready: Ready, context: Context): void;
  onstate?(this: Stream<T>, state: State, about: { reason?: string }): void;
  /** What is told of a partition while the stream goes on, and why it closed. */
  onerror?(this: Stream<T>, error: StreamError | Error): void;
  /** The position moved, what came before it having been handed to the page. */
  onposition?(this: Stream<T>, position: string | null): void;
}

export interface Options<T = any> extends Callbacks<T> {
  /** The gateway, if it is not at the root of the page's origin: "https://host/prefix". */
  base?: string;
  /** Without a position: "live", "earliest", an ISO 8601 time, or back from now as in "-5m". */
  from?: string;
  filter?: Filter | Filter[];
  fields?: string[];
  /** Resume from here; see `store`. */
  position?: string | null;
  store?: Store;
  /** At most so many records are under way to a page that has not taken them. For those who
   * read by `for await`: else all that comes waits in memory. WebSocket only. */
  credit?: number;
  /** A JWT; asked for before the one before expires, and when the gateway refuses it. */
  token?: () => string | Promise<string>;
  /** auto: WebSocket, or EventSource where none comes through. */
  transport?: "auto" | "eventsource" | "websocket";
  /** EventSource to another origin: with cookies. */
  credentials?: boolean;
  /** Whose connection it is. true: that of all tabs of the origin, by SharedWorker ("worker"),
   * else by the tab that the others elect ("channel"), else of the page ("page"). A page of
   * another origin than this file's has no worker. false: one of its own. */
  share?: boolean | "worker" | "channel" | "page";
  /** Where this file is, for a page whose bundler has taken it in: the worker's script. */
  worker?: string;
  /** For Node before 22, and for EventSource in any Node: who brings these has no sharing but
   * that of "page". */
  WebSocket?: new (url: string, protocols: string[]) => any;
  EventSource?: new (url: string, options: { withCredentials: boolean }) => any;
}

/** What `for await` gets: each of them has been given to its callback, too. */
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
  state: CustomEvent<{ state: State; reason?: string }>;
  error: CustomEvent<{ error: StreamError | Error }>;
  position: CustomEvent<{ position: string | null }>;
}

/** One stream of the gateway, closed until `connect`. */
export class Stream<T = any> extends EventTarget implements AsyncIterable<Item<T>> {
  /** path: of a route ("/events/orders", with a query if need be), or a whole URL.
   * TypeError for options that cannot be. */
  constructor(path: string, options?: Options<T>);

  readonly id: string;
  readonly state: State;
  /** Where the page stands: what came before was handed to it. */
  readonly position: string | null;

  /** Begin; after `close`, go on from where it stood. */
  connect(): this;
  /** End it; the position stays. */
  close(): void;
  /** Show something else from here on, with nothing lost that matches both. A refusal is told
   * as an error, and the stream stays as it was. */
  change(view: View): void;
  /** Write a record, where the route has `produce: true`. Repeated by itself after a cut until
   * it is answered, and written once. Rejects with a StreamError, whose `idempotencyKey` lets
   * it be repeated. Needs no `connect`. */
  produce(record: Produce): Promise<Produced>;

  /** In order, from now on; connects. Leaving the loop closes. */
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

/** `new Stream(path, options)`, connected. */
export function connect<T = any>(path: string, options?: Options<T>): Stream<T>;

/** What the gateway refused, or told of a partition. */
export class StreamError extends Error {
  constructor(told: { code: string; message?: string; [name: string]: unknown });
  /** A word: unknown-path, unknown-topic, forbidden, bad-request, kafka-unavailable, ... */
  code: string;
  /** All else that was told: topic, partition, status... */
  details: Record<string, unknown>;
  /** Of a write that was refused. */
  idempotencyKey?: string;
}
