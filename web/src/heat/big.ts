// A heat map beyond what one answer holds: the page has it in tiles, finer ones where one looks closer.
import { useEffect, useState } from 'preact/hooks';
import { errorOf, urlOf } from '../api/client';
import { tokenFields } from '../api/token';
import type { HeatMapRow, Parameters } from '../api/types';
import type { Heat, Tiles } from './model';
import { NO_DATA } from './levels';
import type { Window } from './paint';
import { keyText, parseTile, tilesOf, wholeZoom, zoomOf, type Held, type Tile, type TileKey } from './tile';

export type TileQuestion = Parameters<'/api/v1/diff'>;

const TILES_MAX = 256;
const AT_ONCE_MAX = 4;

async function fetchTile(question: TileQuestion, key: TileKey, stop: AbortSignal): Promise<Tile> {
  const url = urlOf('/api/v1/heatmap', { ...(question as unknown as Record<string, string>), zoom_steps: key.zoomColumns, zoom_tensors: key.zoomRows, column: key.column, row: key.row });
  const answer = await fetch(url, { headers: tokenFields(), signal: stop });
  if (!answer.ok) throw await errorOf(answer);
  return parseTile(await answer.arrayBuffer());
}

/** The tiles that are held. They arrive by themselves once `look` has named a window. */
export class TileStore implements Tiles {
  readonly tiles = new Map<string, Held>();
  readonly rows: HeatMapRow[]; // of the finest resolution; where that is not known yet, those of a coarser one
  readonly first: number[];
  readonly last: number[];
  private readonly stepZooms: Uint8Array; // of the labels that the steps come from
  private readonly stop = new AbortController();
  private readonly listeners = new Set<(tile: Held) => void>();
  private wanted: TileKey[] = [];
  private readonly asked = new Set<string>();

  constructor(
    private readonly question: TileQuestion,
    readonly whole: Held,
    tile: Tile,
  ) {
    this.rows = new Array<HeatMapRow>(tile.finestRows);
    this.first = new Array<number>(tile.finestColumns);
    this.last = new Array<number>(tile.finestColumns);
    this.stepZooms = new Uint8Array(tile.finestColumns).fill(255);
    this.take(whole.key, tile);
  }

  /** What arrives from now on; ends with the returned function. */
  listen(onTile: (tile: Held) => void): () => void {
    this.listeners.add(onTile);
    return () => void this.listeners.delete(onTile);
  }

  end() {
    this.stop.abort();
    this.listeners.clear();
  }

  /** Asks for what a window of so many pixels shows, then for what lies around it. */
  look(window: Window, width: number, height: number) {
    const zoom = zoomOf(window, width, height);
    const finest = { columns: this.first.length, rows: this.rows.length };
    const seen = tilesOf(window, zoom, finest);
    const names = new Set(seen.map(keyText));
    const around = tilesOf(window, zoom, finest, 1).filter((key) => !names.has(keyText(key)));
    this.wanted = [...seen, ...around].filter((key) => !this.tiles.has(keyText(key)));
    this.next();
  }

  levelAt(row: number, column: number): number {
    for (let zoom = 0; zoom < 2; ++zoom) {
      // The finest, else the tile of the whole.
      const held = zoom === 0 ? this.tiles.get(keyText({ zoomColumns: 0, zoomRows: 0, column: column >> 9, row: row >> 9 })) : this.whole;
      if (!held) continue;
      const y = Math.floor(row / 2 ** held.key.zoomRows) - held.key.row * 512;
      const x = Math.floor(column / 2 ** held.key.zoomColumns) - held.key.column * 512;
      return held.cells[y * held.columns + x] ?? NO_DATA;
    }
    return NO_DATA;
  }

  private next() {
    while (this.asked.size < AT_ONCE_MAX && this.wanted.length > 0) {
      const key = this.wanted.shift()!;
      const name = keyText(key);
      if (this.asked.has(name) || this.tiles.has(name)) continue;
      this.asked.add(name);
      fetchTile(this.question, key, this.stop.signal).then(
        (tile) => {
          this.asked.delete(name);
          if (this.stop.signal.aborted) return;
          this.take(key, tile);
          this.next();
        },
        () => {
          // The coarser picture stays. The next look asks again.
          this.asked.delete(name);
        },
      );
    }
  }

  private take(key: TileKey, tile: Tile) {
    const held: Held = { key, columns: tile.columns, rows: tile.rows, cells: tile.cells };
    this.tiles.set(keyText(key), held);
    for (const [name] of this.tiles) {
      if (this.tiles.size <= TILES_MAX) break;
      this.tiles.delete(name);
    }
    this.label(key, tile);
    for (const listener of this.listeners) listener(held);
  }

  /** A finer label replaces a coarser one. */
  private label(key: TileKey, tile: Tile) {
    const each = 2 ** key.zoomRows;
    tile.labels.rows.forEach((row, i) => {
      const begin = (tile.row + i) * each;
      for (let at = begin; at < Math.min(begin + each, this.rows.length); ++at) if (!this.rows[at] || this.rows[at]!.tensors > row.tensors) this.rows[at] = row;
    });
    const columns = 2 ** key.zoomColumns;
    tile.labels.first_steps.forEach((first, i) => {
      const begin = (tile.column + i) * columns;
      const count = Math.min(columns, this.first.length - begin);
      const last = tile.labels.last_steps[i] ?? first;
      for (let j = 0; j < count; ++j) {
        if (this.stepZooms[begin + j]! <= key.zoomColumns) continue;
        this.stepZooms[begin + j] = key.zoomColumns;
        // Steps that are not known one by one lie evenly between those that are.
        const at = (part: number) => first + Math.floor(((last - first + 1) * part) / count);
        this.first[begin + j] = at(j);
        this.last[begin + j] = Math.max(at(j), at(j + 1) - 1);
      }
    });
  }
}

/** The finest map, in tiles; null: nobody asks, or it is not there yet. `version` changes when the runs have more. */
export function useBigHeat(question: TileQuestion | null, version: unknown): Heat | null {
  const key = question === null ? null : JSON.stringify(question);
  const [store, setStore] = useState<{ key: string | null; heat: Heat } | null>(null);
  useEffect(() => {
    if (question === null) return setStore(null);
    const stop = new AbortController();
    let made: TileStore | undefined;
    const read = async () => {
      // How large it is, then the whole of it in one tile.
      const probe = await fetchTile(question, { zoomColumns: 31, zoomRows: 31, column: 0, row: 0 }, stop.signal);
      const whole: TileKey = { zoomColumns: wholeZoom(probe.finestColumns), zoomRows: wholeZoom(probe.finestRows), column: 0, row: 0 };
      const tile = await fetchTile(question, whole, stop.signal);
      made = new TileStore(question, { key: whole, columns: tile.columns, rows: tile.rows, cells: tile.cells }, tile);
      setStore({ key, heat: { rows: made.rows, columns: made.first.length, first: made.first, last: made.last, cells: new Uint8Array(), originRow: tile.originRow, originColumn: tile.originColumn, tiles: made } });
    };
    read().catch(() => undefined); // the merged map of the answer stays
    return () => {
      stop.abort();
      made?.end();
    };
  }, [key, version]);
  return store?.key === key ? store.heat : null;
}
