import { describe as group, expect, test } from 'vitest';
import { bytesOf, urlOf } from '../src/api/client';
import type { HeatMap } from '../src/api/types';
import { coloursOf, describe, ratioOf, stateOf } from '../src/heat/levels';
import { clamped, columnOf, heatOf, parseWindow, placeOf, summaries, windowText, zoomed } from '../src/heat/model';
import { levelsOf, paint } from '../src/heat/paint';

function hex(bytes: Iterable<number>): string {
  return [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

function mapOf(rows: number, steps: readonly (readonly [number, number])[], level: (row: number, column: number) => number): HeatMap {
  return {
    rows: Array.from({ length: rows }, (_, i) => ({ stage: i < rows / 2 ? ('forward' as const) : ('backward' as const), kind: 'output' as const, activation: `m${i}`, output_path: '0', activation_b: '', mode: 'train', tensors: 1 })),
    first_steps: steps.map(([first]) => first),
    last_steps: steps.map(([, last]) => last),
    cells: hex(Array.from({ length: rows * steps.length }, (_, i) => level(Math.floor(i / steps.length), i % steps.length))),
    origin_row: 1,
    origin_column: 2,
    tensors: rows,
    steps: steps.length,
    runs: [],
  };
}

group('levels', () => {
  test('have the meaning that the API documents', () => {
    expect([0, 1, 2, 126, 127, 128, 255].map(stateOf)).toEqual(['no data', 'identical', 'within tolerance', 'within tolerance', 'in one run only', 'diverged', 'diverged']);
    expect(ratioOf(126)).toBe(1);
    expect(ratioOf(110)).toBeCloseTo(0.1);
    expect(ratioOf(128)).toBe(1);
    expect(ratioOf(160)).toBeCloseTo(100);
    expect(ratioOf(255)).toBe(Infinity);
    expect(ratioOf(127)).toBeNull();
    expect(describe(144)).toBe('diverged, about 10 times the tolerance');
    expect(describe(126)).toBe('just within tolerance, or explained by rounding or noise');
    // Also of an integer's difference: its tolerance is 0, and its distance is known.
    expect(describe(255)).toBe('diverged, far beyond the tolerance');
  });

  test('darken away from a light page and brighten away from a dark one', () => {
    const lightness = (rgb: readonly number[]) => 0.2126 * rgb[0]! + 0.7152 * rgb[1]! + 0.0722 * rgb[2]!;
    for (const theme of ['light', 'dark'] as const) {
      const sign = theme === 'light' ? -1 : 1;
      const colours = coloursOf(theme).map(lightness);
      for (const [from, to] of [[46, 126], [128, 208]] as const) {
        for (let level = from + 1; level <= to; ++level) expect(sign * (colours[level]! - colours[level - 1]!)).toBeGreaterThanOrEqual(-0.01 * 255);
        expect(sign * (colours[to]! - colours[from]!)).toBeGreaterThan(20);
      }
    }
  });
});

group('painting', () => {
  test('several cells under a pixel become the greatest', () => {
    const cells = new Uint8Array(100 * 100).fill(1);
    cells[37 * 100 + 83] = 200;
    const levels = levelsOf(cells, 100, { row: 0, rows: 100, column: 0, columns: 100 }, 10, 10);
    expect([...levels].filter((level) => level === 200)).toHaveLength(1);
    expect(levels[3 * 10 + 8]).toBe(200);
  });

  test('a cell under several pixels fills them, and a window shows its part only', () => {
    const cells = Uint8Array.from({ length: 12 }, (_, i) => i);
    expect([...levelsOf(cells, 4, { row: 1, rows: 2, column: 1, columns: 2 }, 4, 4)]).toEqual([5, 5, 6, 6, 5, 5, 6, 6, 9, 9, 10, 10, 9, 9, 10, 10]);
  });

  test('no cell is lost at any size', () => {
    for (const [rows, columns, width, height] of [[7, 13, 5, 3], [333, 777, 100, 61], [3, 5, 50, 40], [1, 1, 9, 9]] as const) {
      for (const [row, column] of [[0, 0], [rows - 1, columns - 1], [rows >> 1, columns >> 1]] as const) {
        const cells = new Uint8Array(rows * columns);
        cells[row * columns + column] = 9;
        expect(levelsOf(cells, columns, { row: 0, rows, column: 0, columns }, width, height)).toContain(9);
      }
    }
  });

  test('pixels have the colours of their levels', () => {
    const palette = new Uint32Array(256);
    palette[5] = 0xff030201;
    expect([...paint(Uint8Array.of(5), 1, { row: 0, rows: 1, column: 0, columns: 1 }, 1, 1, palette)]).toEqual([1, 2, 3, 255]);
  });
});

group('model', () => {
  const steps = [[0, 9], [10, 19], [20, 29], [40, 40]] as const;
  const map = mapOf(4, steps, (row, column) => (row === 1 && column >= 2 ? 130 + column : 1));

  test('keeps the rows that are chosen, and the origin with them', () => {
    const all = heatOf(map);
    expect(all.rows).toHaveLength(4);
    expect([all.originRow, all.originColumn]).toEqual([1, 2]);
    const forward = heatOf(map, 'forward');
    expect(forward.rows.map((row) => row.activation)).toEqual(['m0', 'm1']);
    expect([...forward.cells]).toEqual([1, 1, 1, 1, 1, 1, 132, 133]);
    expect(heatOf(map, 'backward').originRow).toBeNull();
  });

  test('finds the column of a step and its place in it', () => {
    const heat = heatOf(map);
    expect([0, 9, 10, 29, 40].map((step) => columnOf(heat, step))).toEqual([0, 0, 1, 2, 3]);
    expect(columnOf(heat, 1e9)).toBe(3);
    expect(placeOf(heat, 40)).toBe(3.5);
    expect(placeOf(heat, 14)).toBeCloseTo(1.45);
  });

  test('a window survives the URL', () => {
    const heat = heatOf(mapOf(50, Array.from({ length: 60 }, (_, i) => [3 * i, 3 * i + 2] as const), () => 1));
    const window = clamped(heat, { row: 10, rows: 20, column: 5, columns: 9 });
    expect(parseWindow(heat, windowText(heat, window))).toEqual(window);
    expect(windowText(heat, parseWindow(heat, ''))).toBe('');
    for (const wrong of ['x', '5-1:9-2', '0-99999999999:0-99999999', '-1-2:3-4']) {
      const made = parseWindow(heat, wrong);
      expect(made.row + made.rows).toBeLessThanOrEqual(50);
      expect(made.rows).toBeGreaterThan(0);
      expect(made.columns).toBeGreaterThan(0);
    }
  });

  test('zooming keeps the cell where it is, and stays within the map', () => {
    const heat = heatOf(mapOf(100, Array.from({ length: 100 }, (_, i) => [i, i] as const), () => 1));
    const near = zoomed(heat, { row: 0, rows: 100, column: 0, columns: 100 }, 0.5, 50, 50);
    expect(near).toEqual({ row: 25, rows: 50, column: 25, columns: 50 });
    expect(zoomed(heat, near, 100, 50, 50)).toEqual({ row: 0, rows: 100, column: 0, columns: 100 });
  });

  test('the table behind the picture tells the same', () => {
    const rows = summaries(heatOf(map));
    expect(rows[1]).toMatchObject({ worst: 133, diverged: 2, first: 2 });
    expect(rows[0]).toMatchObject({ worst: 1, diverged: 0, first: null });
  });
});

group('client', () => {
  test('hexadecimal cells', () => {
    expect([...bytesOf('00ff7f80a1')]).toEqual([0, 255, 127, 128, 161]);
    expect(bytesOf('')).toHaveLength(0);
  });

  test('parameters are encoded, commas of texts stay theirs', () => {
    expect(urlOf('/api/v1/diff', { run_a: 'a&b=c,d', run_b: '<script>', ranks: [0, 3], steps: '', all: false })).toBe('/api/v1/diff?run_a=a%26b%3Dc%2Cd&run_b=%3Cscript%3E&ranks=0,3');
    expect(urlOf('/api/v1/runs', {})).toBe('/api/v1/runs');
  });
});
