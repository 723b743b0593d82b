// Paints heat maps away from the page's own thread. Holds the cells, so that a zoom sends only a window.
import { Pictures, type Order } from './pictures';

const pictures = new Pictures();

self.onmessage = (event: MessageEvent<Order>) => {
  const painted = pictures.take(event.data);
  if (painted) (self as unknown as Worker).postMessage(painted, [painted.pixels.buffer]);
};
