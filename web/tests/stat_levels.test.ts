import { expect, test } from 'vitest';
import type { EventRow, StatMap } from '../src/api/types';
import { byteOf, joinedMaps, sizeOf, sizesOf, sizeText, statColours, statHeatOf, relativeTo, timesText } from '../src/heat/stat_levels';
import { marksOf } from '../src/heat/marks';

const hex = (levels: readonly number[]) => levels.map((level) => level.toString(16).padStart(4, '0')).join('');

function mapOf(names: readonly string[], steps: readonly number[], levels: readonly number[]): StatMap {
  return {
    run: 'r',
    by: 'l2',
    rows: names.map((activation) => ({ stage: 'forward' as const, kind: 'output' as const, activation, output_path: '0', activation_b: '', mode: 'train', tensors: 1 })),
    first_steps: [...steps],
    last_steps: [...steps],
    cells: hex(levels),
    tensors: names.length,
    steps: steps.length,
    ranks: [0],
  };
}

test('levels have the meaning that the API documents', () => {
  expect([...sizesOf(hex([0, 1, 32768, 33280, 65535]))]).toEqual([0, 1, 32768, 33280, 65535]);
  expect([0, 1, 32768, 33280, 32256, 65535].map(sizeOf)).toEqual([null, 0, 1, 10, 0.1, NaN]);
  expect([0, 1, 33280, 65535].map(sizeText)).toEqual(['no data', '0', '10', 'NaN or infinite']);
});

test('what is painted keeps the order and the ends', () => {
  const bytes = [0, 1, 30000, 30500, 31000, 65535].map((level) => byteOf(level, 30000, 31000));
  expect(bytes).toEqual([0, 1, 2, 128, 254, 255]);
  expect(byteOf(30000, 30000, 30000)).toBe(128); // one size only: the middle
});

test('colours go away from the background', () => {
  const lightness = (rgb: readonly number[]) => 0.2126 * rgb[0]! + 0.7152 * rgb[1]! + 0.0722 * rgb[2]!;
  for (const theme of ['light', 'dark'] as const) {
    const colours = statColours(theme).map(lightness);
    const sign = theme === 'light' ? -1 : 1;
    for (let level = 3; level <= 254; ++level) expect(sign * (colours[level]! - colours[level - 1]!)).toBeGreaterThanOrEqual(-2.6);
    expect(sign * (colours[254]! - colours[2]!)).toBeGreaterThan(120);
  }
});

test('a map of NaN everywhere, and one of nothing', () => {
  const broken = mapOf(['a'], [0, 1], [65535, 65535]);
  const heat = statHeatOf(broken, sizesOf(broken.cells));
  expect([...heat.cells]).toEqual([255, 255]);
  expect(heat.high).toBe(0);
  const nothing = mapOf([], [], []);
  expect(statHeatOf(nothing, sizesOf('')).rows).toEqual([]);
});

test('newer steps are joined to older ones by name, and the newer count', () => {
  const old = mapOf(['a', 'b'], [0, 1], [10, 11, 20, 21]);
  const more = mapOf(['b', 'c'], [1, 2], [91, 92, 31, 32]);
  const joined = joinedMaps(old, more)!;
  expect(joined.map.rows.map((row) => row.activation)).toEqual(['a', 'b', 'c']);
  expect(joined.map.first_steps).toEqual([0, 1, 2]);
  expect([...joined.sizes]).toEqual([10, 0, 0, 20, 91, 92, 0, 31, 32]);
  expect([...joinedMaps(old, mapOf([], [], []))!.sizes]).toEqual([10, 11, 20, 21]);
  expect(joinedMaps({ ...old, steps: 4 }, more)).toBeNull(); // merged steps cannot be continued
});

test('alarms are marked where their tensor and step are', () => {
  const map = mapOf(['a', 'b'], [5, 6], [10, 11, 20, 21]);
  const heat = statHeatOf(map, sizesOf(map.cells));
  const alarm = (step: number, activation: string): EventRow => ({ run: 'r', rank: 0, step, kind: 'alarm', text: 't', unix_nanos: 0, fields: { activation, kind: 'output', severity: 'alarm' }, origin: 'agent', attempt: 1 });
  expect(marksOf(heat, [alarm(6, 'b'), alarm(6, 'b'), alarm(4, 'a'), alarm(9, 'a'), alarm(5, 'nobody')])).toEqual([{ row: 1, column: 1 }]);
});

test('relative to its median a change shows and a constant does not', () => {
  const level = (size: number) => 32768 + Math.round(512 * Math.log10(size));
  const map = { rows: ['big', 'grows', 'gone'].map((activation) => ({ stage: 'forward', kind: 'output', activation, output_path: '', mode: 'train', tensors: 1, activation_b: '' })), first_steps: [0, 1, 2], last_steps: [0, 1, 2] };
  const sizes = Uint16Array.from([level(1e6), level(1e6), level(1e6), level(0.01), level(0.01), level(1), 0, 1, 65535]);
  const heat = relativeTo(statHeatOf(map as unknown as Parameters<typeof statHeatOf>[0], sizes));
  expect([...heat.cells]).toEqual([128, 128, 128, 128, 128, 254, 0, 1, 255]);
  expect(timesText(level(1), heat.medians![1]!)).toBe('100 times its median');
  expect(timesText(level(0.01), heat.medians![1]!)).toBe('its median');
  expect(timesText(65535, heat.medians![2]!)).toBe('');
});
