// Paints heat maps away from the page's own thread. Holds the cells, so that a zoom sends only a window.
import { paint, type Window } from './paint';

export type Order =
  | { what: 'cells'; cells: Uint8Array; stride: number }
  | { what: 'paint'; id: number; window: Window; width: number; height: number; palette: Uint32Array };
export interface Painted {
  id: number;
  width: number;
  height: number;
  pixels: Uint8ClampedArray<ArrayBuffer>;
  milliseconds: number;
}

let cells = new Uint8Array();
let stride = 0;

self.onmessage = (event: MessageEvent<Order>) => {
  const order = event.data;
  if (order.what === 'cells') {
    cells = order.cells as Uint8Array<ArrayBuffer>;
    stride = order.stride;
    return;
  }
  const begin = performance.now();
  const pixels = paint(cells, stride, order.window, order.width, order.height, order.palette);
  const painted: Painted = { id: order.id, width: order.width, height: order.height, pixels, milliseconds: performance.now() - begin };
  (self as unknown as Worker).postMessage(painted, [pixels.buffer]);
};
