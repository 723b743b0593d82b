// Tiles of a heat map that is larger than a screen: their bytes (docs/http.md), and pictures made of them.
import type { HeatMapRow } from '../api/types';
import { NO_DATA } from './levels';
import type { Window } from './paint';

export const TILE_SIDE = 512;
const HEAD_BYTES = 64;
const NONE = 0xffffffff;

export interface TileLabels {
  rows: HeatMapRow[];
  first_steps: number[];
  last_steps: number[];
}
export interface TileHead {
  column: number; // the first one, counted in columns of its zoom
  columns: number;
  row: number;
  rows: number;
  finestColumns: number;
  finestRows: number;
  originColumn: number | null;
  originRow: number | null;
}
export interface Tile extends TileHead {
  cells: Uint8Array;
  labels: TileLabels;
}

/** Throws if these are not the bytes of a tile. */
export function parseTile(bytes: ArrayBuffer): Tile {
  const view = new DataView(bytes);
  const wrong = (what: string) => new Error(`heat map: ${what}; expected a tile of this page's version; load the page again`);
  if (bytes.byteLength < HEAD_BYTES || view.getUint32(0, false) !== 0x5343484d) throw wrong('found other bytes');
  if (view.getUint16(4, true) !== 1) throw wrong(`found version ${view.getUint16(4, true)}`);
  const head = view.getUint16(6, true);
  const at = (index: number) => view.getUint32(8 + 4 * index, true);
  const [column, columns, row, rows, , , finestColumns, finestRows, originColumn, originRow, labelBytes] = Array.from({ length: 11 }, (_, i) => at(i)) as [
    number, number, number, number, number, number, number, number, number, number, number,
  ]; // prettier-ignore
  const end = head + columns * rows;
  if (bytes.byteLength !== end + labelBytes) throw wrong('its length is not what it says');
  return {
    column, columns, row, rows, finestColumns, finestRows,
    originColumn: originColumn === NONE ? null : originColumn,
    originRow: originRow === NONE ? null : originRow,
    cells: new Uint8Array(bytes, head, columns * rows),
    labels: JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, end))) as TileLabels,
  }; // prettier-ignore
}

/** Which resolution, and which tile of it. */
export interface TileKey {
  zoomColumns: number; // a column of it stands for 2^zoomColumns of the finest
  zoomRows: number;
  column: number; // of tiles
  row: number;
}
export const keyText = (key: TileKey) => `${key.zoomColumns}/${key.zoomRows}/${key.column}/${key.row}`;

/** The smallest zoom at which one tile holds a side of so many cells. */
export function wholeZoom(finest: number): number {
  let zoom = 0;
  while (Math.ceil(finest / 2 ** zoom) > TILE_SIDE) ++zoom;
  return zoom;
}

/** The coarsest resolution that still has a cell for each pixel. */
export function zoomOf(window: Window, width: number, height: number): { zoomColumns: number; zoomRows: number } {
  const zoom = (cells: number, pixels: number) => Math.max(0, Math.floor(Math.log2(cells / Math.max(1, pixels))));
  return { zoomColumns: zoom(window.columns, width), zoomRows: zoom(window.rows, height) };
}

/** The tiles of a resolution that a window needs, and those `around` it. */
export function tilesOf(window: Window, zoom: { zoomColumns: number; zoomRows: number }, finest: { columns: number; rows: number }, around = 0): TileKey[] {
  const side = (first: number, count: number, all: number, zoomed: number) => {
    const size = TILE_SIDE * 2 ** zoomed;
    const last = Math.max(0, Math.ceil(all / size) - 1);
    const from = Math.max(0, Math.min(last, Math.floor(first / size) - around));
    const to = Math.max(0, Math.min(last, Math.floor((first + count - 1) / size) + around));
    return Array.from({ length: to - from + 1 }, (_, i) => from + i);
  };
  const columns = side(window.column, window.columns, finest.columns, zoom.zoomColumns);
  return side(window.row, window.rows, finest.rows, zoom.zoomRows).flatMap((row) => columns.map((column) => ({ ...zoom, column, row })));
}

export interface Held {
  key: TileKey;
  columns: number;
  rows: number;
  cells: Uint8Array;
}

/** A part of the map at one resolution, put together from the tiles that are there; where one is missing, from the tile of the whole. */
export interface Composed {
  cells: Uint8Array;
  columns: number;
  window: Window; // what was asked for, in cells of `cells`
}

export function composed(tiles: ReadonlyMap<string, Held>, whole: Held | undefined, window: Window, zoom: { zoomColumns: number; zoomRows: number }): Composed {
  const scaleColumns = 2 ** zoom.zoomColumns;
  const scaleRows = 2 ** zoom.zoomRows;
  const left = Math.floor(window.column / scaleColumns);
  const top = Math.floor(window.row / scaleRows);
  const columns = Math.floor((window.column + window.columns - 1) / scaleColumns) - left + 1;
  const rows = Math.floor((window.row + window.rows - 1) / scaleRows) - top + 1;
  const cells = new Uint8Array(columns * rows);
  for (let tileRow = Math.floor(top / TILE_SIDE); tileRow * TILE_SIDE < top + rows; ++tileRow) {
    for (let tileColumn = Math.floor(left / TILE_SIDE); tileColumn * TILE_SIDE < left + columns; ++tileColumn) {
      const tile = tiles.get(keyText({ ...zoom, column: tileColumn, row: tileRow }));
      const fromRow = Math.max(top, tileRow * TILE_SIDE);
      const toRow = Math.min(top + rows, (tileRow + 1) * TILE_SIDE);
      const fromColumn = Math.max(left, tileColumn * TILE_SIDE);
      const toColumn = Math.min(left + columns, (tileColumn + 1) * TILE_SIDE);
      for (let row = fromRow; row < toRow; ++row) {
        const out = (row - top) * columns + fromColumn - left;
        if (tile) {
          const at = (row - tileRow * TILE_SIDE) * tile.columns + fromColumn - tileColumn * TILE_SIDE;
          cells.set(tile.cells.subarray(at, at + toColumn - fromColumn), out);
        } else if (whole) {
          const line = Math.min(whole.rows - 1, Math.floor((row * scaleRows) / 2 ** whole.key.zoomRows)) * whole.columns;
          for (let column = fromColumn; column < toColumn; ++column) {
            const at = Math.min(whole.columns - 1, Math.floor((column * scaleColumns) / 2 ** whole.key.zoomColumns));
            cells[out + column - fromColumn] = whole.cells[line + at] ?? NO_DATA;
          }
        }
      }
    }
  }
  return { cells, columns, window: { row: 0, rows, column: 0, columns } };
}
