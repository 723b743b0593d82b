// Who paints heat maps: a worker beside the page, or the page itself where there is no other file (a report).
import { paint, type Window } from './paint';
import type { Order, Painted } from './worker';

export interface Painter {
  cells(cells: Uint8Array, stride: number): void;
  paint(order: { id: number; window: Window; width: number; height: number; palette: Uint32Array }): void;
  end(): void;
}
export type MakePainter = (onPainted: (painted: Painted) => void) => Painter;

/** Paints at once, on the caller's thread. */
export const directPainter: MakePainter = (onPainted) => {
  let held = new Uint8Array();
  let width = 0;
  return {
    cells(cells, stride) {
      held = cells as Uint8Array<ArrayBuffer>;
      width = stride;
    },
    paint(order) {
      const begin = performance.now();
      const pixels = paint(held, width, order.window, order.width, order.height, order.palette);
      // Later, as from a worker: the caller has noted by then that it waits.
      queueMicrotask(() => onPainted({ id: order.id, width: order.width, height: order.height, pixels, milliseconds: performance.now() - begin }));
    },
    end() {},
  };
};

/** Paints in a worker. */
export function workerPainter(make: () => Worker): MakePainter {
  return (onPainted) => {
    const worker = make();
    const send = (order: Order) => worker.postMessage(order);
    worker.onmessage = (event: MessageEvent<Painted>) => onPainted(event.data);
    return {
      cells: (cells, stride) => send({ what: 'cells', cells, stride }),
      paint: (order) => send({ what: 'paint', ...order }),
      end: () => worker.terminate(),
    };
  };
}

let making: MakePainter = directPainter;
/** Before the first heat map is shown. */
export function setPainter(make: MakePainter) {
  making = make;
}
export function makePainter(onPainted: (painted: Painted) => void): Painter {
  return making(onPainted);
}
