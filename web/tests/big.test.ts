import { describe, expect, it } from 'vitest';
import { TileStore } from '../src/heat/big';
import { wholeZoom, type Tile } from '../src/heat/tile';

/** A map of 2,600 steps, of which every third was recorded, and 3 tensors; merged to 2^zoom steps a column. */
function tileOf(zoom: number, column: number): Tile {
  const each = 2 ** zoom;
  const total = Math.ceil(2600 / each);
  const first = column * 512;
  const columns = Math.min(512, total - first);
  const rows = ['a', 'b', 'c'].map((activation) => ({ activation, tensors: 1 }) as never);
  const steps = (at: number) => 3 * Math.min(2599, at);
  return {
    column: first, columns, row: 0, rows: 3, finestColumns: 2600, finestRows: 3, originColumn: null, originRow: null,
    cells: new Uint8Array(3 * columns).fill(zoom + 1),
    labels: { rows, first_steps: Array.from({ length: columns }, (_, i) => steps((first + i) * each)), last_steps: Array.from({ length: columns }, (_, i) => steps((first + i + 1) * each - 1)) },
  }; // prettier-ignore
}

describe('a map in tiles', () => {
  const zoom = wholeZoom(2600);
  const whole = tileOf(zoom, 0);
  const key = { zoomColumns: zoom, zoomRows: 0, column: 0, row: 0 };

  it('knows about where steps lie from the tile of the whole, and exactly from finer ones', () => {
    const store = new TileStore({ run_a: 'a', run_b: 'b' }, { key, columns: whole.columns, rows: 3, cells: whole.cells }, whole);
    expect([store.first.length, store.rows.length]).toEqual([2600, 3]);
    for (let column = 0; column < 2600; ++column) {
      expect(Math.abs(store.first[column]! - 3 * column)).toBeLessThan(3 * 2 ** zoom);
      if (column > 0) expect(store.first[column]!).toBeGreaterThanOrEqual(store.last[column - 1]!);
    }
    expect(store.levelAt(1, 1717)).toBe(zoom + 1);
    (store as unknown as { take(key: object, tile: Tile): void }).take({ ...key, zoomColumns: 0, column: 3 }, tileOf(0, 3));
    for (let column = 3 * 512; column < 4 * 512; ++column) expect([store.first[column], store.last[column]]).toEqual([3 * column, 3 * column]);
    expect(store.levelAt(1, 1717)).toBe(1);
    store.end();
  });
});
