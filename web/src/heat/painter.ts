// Who paints heat maps: a worker beside the page, or the page itself where there is no other file (a report).
import { Pictures, type Order, type Painted } from './pictures';

export interface Painter {
  send(order: Order): void;
  end(): void;
}
export type MakePainter = (onPainted: (painted: Painted) => void) => Painter;

/** Paints at once, on the caller's thread. */
export const directPainter: MakePainter = (onPainted) => {
  const pictures = new Pictures();
  return {
    send(order) {
      const painted = pictures.take(order);
      // Later, as from a worker: the caller has noted by then that it waits.
      if (painted) queueMicrotask(() => onPainted(painted));
    },
    end() {},
  };
};

/** Paints in a worker, the first of which starts while the page waits for its data. */
export function workerPainter(make: () => Worker): MakePainter {
  let spare: Worker | null = null;
  const timer = setTimeout(() => (spare = make()));
  return (onPainted) => {
    clearTimeout(timer);
    const worker = spare ?? make();
    spare = null;
    worker.onmessage = (event: MessageEvent<Painted>) => onPainted(event.data);
    return { send: (order) => worker.postMessage(order), end: () => worker.terminate() };
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
