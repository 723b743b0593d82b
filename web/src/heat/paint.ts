// Cells to pixels: several cells under a pixel become the greatest of their levels.

export interface Window {
  row: number; // first row and column that are seen, and how many
  rows: number;
  column: number;
  columns: number;
}

/**
 * The levels of width x height pixels that show `window` of a map with `stride` columns. Cost: one look at
 * each cell that is seen, and one at each pixel.
 */
export function levelsOf(cells: Uint8Array, stride: number, window: Window, width: number, height: number): Uint8Array {
  const pixels = new Uint8Array(width * height);
  const lines = new Uint8Array(window.columns);
  let painted = -1; // the first row of the last line, if it stood for one row
  for (let y = 0; y < height; ++y) {
    const first = window.row + Math.floor((y * window.rows) / height);
    const end = Math.max(first + 1, window.row + Math.floor(((y + 1) * window.rows) / height));
    const out = y * width;
    if (end === first + 1 && first === painted) {
      pixels.copyWithin(out, out - width, out);
      continue;
    }
    painted = end === first + 1 ? first : -1;
    const begin = first * stride + window.column;
    lines.set(cells.subarray(begin, begin + window.columns));
    for (let row = first + 1; row < end; ++row) {
      const at = row * stride + window.column;
      for (let i = 0; i < window.columns; ++i) if (cells[at + i]! > lines[i]!) lines[i] = cells[at + i]!;
    }
    for (let x = 0; x < width; ++x) {
      const from = Math.floor((x * window.columns) / width);
      const to = Math.max(from + 1, Math.floor(((x + 1) * window.columns) / width));
      let level = lines[from]!;
      for (let i = from + 1; i < to; ++i) if (lines[i]! > level) level = lines[i]!;
      pixels[out + x] = level;
    }
  }
  return pixels;
}

/** The same as RGBA pixels. */
export function paint(cells: Uint8Array, stride: number, window: Window, width: number, height: number, palette: Uint32Array): Uint8ClampedArray<ArrayBuffer> {
  const levels = levelsOf(cells, stride, window, width, height);
  const colours = new Uint32Array(levels.length);
  for (let i = 0; i < levels.length; ++i) colours[i] = palette[levels[i]!]!;
  return new Uint8ClampedArray(colours.buffer);
}
