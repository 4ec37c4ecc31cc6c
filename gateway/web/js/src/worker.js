import { holdLock } from "./locks.js";
import { Multiplexer } from "./multiplexer/multiplexer.js";
import { PROTOCOL_NAME } from "./protocol.js";
import { createUuid } from "./uuid.js";

/**
 * Run one Multiplexer for all tabs that connect to this SharedWorker.
 *
 * @param {SharedWorkerGlobalScope} worker
 */
export function serveTabs(worker) {
  const multiplexer = new Multiplexer();
  const lock = `${PROTOCOL_NAME} worker ${createUuid()}`;
  const lockHeld = holdLock(lock);
  worker.onconnect = ({ ports: [port] }) => {
    let tab = "";
    const client = { post: (message) => port.postMessage(message) };
    port.onclose = () => multiplexer.removeTab(tab); // for want of locks, if the browser has it
    port.onmessage = async ({ data }) => {
      if (!data.hello) return multiplexer.receive(client, tab, data);
      tab = data.hello;
      await lockHeld;
      port.postMessage({ hello: lock });
    };
  };
}
