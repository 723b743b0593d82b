// What a painter holds of a heat map, and its pictures: all cells of a small one, tiles of a large one.
import { paint, type Window } from './paint';
import { composed, keyText, zoomOf, type Held } from './tile';

const TILES_MAX = 256; // of 256 KiB each

export interface PaintOrder {
  id: number;
  window: Window;
  width: number;
  height: number;
  palette: Uint32Array;
}
export type Order = { what: 'cells'; cells: Uint8Array; stride: number } | { what: 'tiles'; whole: Held } | { what: 'tile'; tile: Held } | ({ what: 'paint' } & PaintOrder);
export interface Painted {
  id: number;
  width: number;
  height: number;
  pixels: Uint8ClampedArray<ArrayBuffer>;
  milliseconds: number;
}

export class Pictures {
  private cells = new Uint8Array();
  private stride = 0;
  private whole: Held | undefined;
  private tiles = new Map<string, Held>();

  /** The picture that was ordered; null: this was an order to hold something. */
  take(order: Order): Painted | null {
    switch (order.what) {
      case 'cells':
        this.cells = order.cells as Uint8Array<ArrayBuffer>;
        this.stride = order.stride;
        this.whole = undefined;
        this.tiles = new Map();
        return null;
      case 'tiles':
        this.whole = order.whole;
        this.tiles = new Map();
        this.keep(order.whole);
        return null;
      case 'tile':
        this.keep(order.tile);
        return null;
      case 'paint':
        return this.paint(order);
    }
  }

  private keep(tile: Held) {
    this.tiles.delete(keyText(tile.key));
    this.tiles.set(keyText(tile.key), tile);
    for (const [key] of this.tiles) {
      if (this.tiles.size <= TILES_MAX) break;
      this.tiles.delete(key);
    }
  }

  private paint({ id, window, width, height, palette }: PaintOrder): Painted {
    const begin = performance.now();
    const part = this.whole ? composed(this.tiles, this.whole, window, zoomOf(window, width, height)) : { cells: this.cells, columns: this.stride, window };
    const pixels = paint(part.cells, part.columns, part.window, width, height, palette);
    return { id, width, height, pixels, milliseconds: performance.now() - begin };
  }
}
