/**
 * The browser client of the gateway: records of Kafka in a page or in Node, none lost and none
 * twice over any cut.
 *
 *     import { connect } from "/gateway.js";
 *     const orders = connect("/events/orders", { onrecord: (order) => console.log(order) });
 *
 * One connection serves all tabs of an origin. It belongs to a Multiplexer, which lives in a
 * SharedWorker (whose script is the bundle of these modules), in a tab that the tabs elected, or
 * in the page itself:
 *
 *     Stream - Link  == protocol.js ==>  Multiplexer - Subscription - transport  ==>  gateway
 *
 * A Stream knows its own position, and nothing else has to outlive anything. The owner of the
 * connection may disappear at any time; every Stream then tells the next owner its position.
 *
 * Read stream.js first, then links/link.js and multiplexer/multiplexer.js.
 *
 * @module
 */

import { PROTOCOL_NAME } from "./protocol.js";
import { serveTabs } from "./worker.js";

export { connect, Stream } from "./stream.js";
export { StreamError } from "./stream-error.js";

if (globalThis.SharedWorkerGlobalScope && globalThis.name === PROTOCOL_NAME) serveTabs(globalThis);
