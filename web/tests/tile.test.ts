import { describe, expect, it } from 'vitest';
import { composed, keyText, parseTile, tilesOf, wholeZoom, zoomOf, type Held } from '../src/heat/tile';

function bytesOfTile(numbers: number[], cells: number[], labels: string): ArrayBuffer {
  const text = new TextEncoder().encode(labels);
  const bytes = new Uint8Array(64 + cells.length + text.length);
  const view = new DataView(bytes.buffer);
  bytes.set(new TextEncoder().encode('SCHM'));
  view.setUint16(4, 1, true);
  view.setUint16(6, 64, true);
  [...numbers, text.length].forEach((number, i) => view.setUint32(8 + 4 * i, number, true));
  bytes.set(cells, 64);
  bytes.set(text, 64 + cells.length);
  return bytes.buffer;
}
const NONE = 0xffffffff;

describe('the bytes of a tile', () => {
  it('are read as docs/http.md lays them out', () => {
    const labels = JSON.stringify({ rows: [{ activation: 'a' }, { activation: 'b' }], first_steps: [0, 1, 2], last_steps: [0, 1, 2] });
    const tile = parseTile(bytesOfTile([512, 3, 1024, 2, 515, 1026, 5000, 7000, 4, NONE], [1, 2, 3, 4, 5, 6], labels));
    expect([tile.column, tile.columns, tile.row, tile.rows]).toEqual([512, 3, 1024, 2]);
    expect([tile.finestColumns, tile.finestRows, tile.originColumn, tile.originRow]).toEqual([5000, 7000, 4, null]);
    expect([...tile.cells]).toEqual([1, 2, 3, 4, 5, 6]);
    expect(tile.labels.rows[1]?.activation).toBe('b');
  });

  it('are refused if they are others', () => {
    const good = bytesOfTile([0, 1, 0, 1, 1, 1, 1, 1, NONE, NONE], [7], '{}');
    for (const bad of [new ArrayBuffer(0), new ArrayBuffer(64), good.slice(0, good.byteLength - 1)]) expect(() => parseTile(bad)).toThrow(/expected a tile/);
    new DataView(good).setUint16(4, 2, true);
    expect(() => parseTile(good)).toThrow(/version 2/);
  });
});

describe('resolutions', () => {
  it('have a cell for each pixel, and no more than twice as many', () => {
    for (const cells of [1, 100, 1000, 5000, 1_000_000]) {
      const { zoomColumns } = zoomOf({ row: 0, rows: 1, column: 0, columns: cells }, 1000, 400);
      const shown = cells / 2 ** zoomColumns;
      expect(shown).toBeLessThan(2000);
      if (cells >= 1000) expect(shown).toBeGreaterThanOrEqual(1000);
    }
    expect([wholeZoom(1), wholeZoom(512), wholeZoom(513), wholeZoom(1_000_000)]).toEqual([0, 0, 1, 11]);
  });

  it('need the tiles that a window touches', () => {
    const finest = { columns: 5000, rows: 600 };
    const zoom = { zoomColumns: 1, zoomRows: 0 };
    const keys = tilesOf({ row: 500, rows: 20, column: 1000, columns: 100 }, zoom, finest).map(keyText);
    expect(keys).toEqual(['1/0/0/0', '1/0/1/0', '1/0/0/1', '1/0/1/1']);
    expect(tilesOf({ row: 0, rows: 1, column: 0, columns: 1 }, zoom, finest, 1).length).toBe(4);
  });
});

describe('a picture from tiles', () => {
  const map = (row: number, column: number) => 1 + ((row * 31 + column * 7) % 250);
  const held = (zoomColumns: number, zoomRows: number, column: number, row: number, finest: { columns: number; rows: number }): Held => {
    const columns = Math.min(512, Math.ceil(finest.columns / 2 ** zoomColumns) - column * 512);
    const rows = Math.min(512, Math.ceil(finest.rows / 2 ** zoomRows) - row * 512);
    const cells = new Uint8Array(columns * rows);
    for (let y = 0; y < rows; ++y) {
      for (let x = 0; x < columns; ++x) cells[y * columns + x] = map((row * 512 + y) << zoomRows, (column * 512 + x) << zoomColumns);
    }
    return { key: { zoomColumns, zoomRows, column, row }, columns, rows, cells };
  };

  it('has each cell in its place, across the borders of tiles', () => {
    const finest = { columns: 1300, rows: 700 };
    const tiles = new Map<string, Held>();
    for (let row = 0; row < 2; ++row) for (let column = 0; column < 3; ++column) tiles.set(`0/0/${column}/${row}`, held(0, 0, column, row, finest));
    const window = { row: 480, rows: 90, column: 500, columns: 600 };
    const part = composed(tiles, undefined, window, { zoomColumns: 0, zoomRows: 0 });
    expect([part.columns, part.window.rows]).toEqual([600, 90]);
    for (let y = 0; y < 90; ++y) for (let x = 0; x < 600; ++x) expect(part.cells[y * 600 + x]).toBe(map(480 + y, 500 + x));
  });

  it('is the coarse one where a tile is missing', () => {
    const whole: Held = { key: { zoomColumns: 2, zoomRows: 1, column: 0, row: 0 }, columns: 4, rows: 2, cells: Uint8Array.from([1, 2, 3, 4, 5, 6, 7, 8]) };
    const part = composed(new Map(), whole, { row: 1, rows: 2, column: 3, columns: 6 }, { zoomColumns: 0, zoomRows: 0 });
    expect([...part.cells]).toEqual([1, 2, 2, 2, 2, 3, 5, 6, 6, 6, 6, 7]);
  });
});
