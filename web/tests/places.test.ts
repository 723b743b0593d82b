import { nearest } from '../src/views/place_choice';
import { expect, test } from 'vitest';
import type { DiffReport, Divergence, HeatMapRow, SeriesPoint } from '../src/api/types';
import { hrefOf, parseRoute } from '../src/route';
import { comparesParts, firstPlace, foundIn, pairAt, placesOf, pointAt } from '../src/views/places';

const found = (step: number, rank: number, distance: Divergence['distance'], more: Partial<Divergence> = {}) =>
  ({ activation: 'fc', kind: 'output', output_path: '0', mode: 'train', step, rank, micro_batch: 0, call: 0, distance, ranks_a: [], ranks_b: [], rank_b: null, ...more }) as unknown as Divergence;
const row = { activation: 'fc', kind: 'output', output_path: '0', mode: 'train' } as HeatMapRow;
const report = (diverged: Divergence[], root: Divergence | null = null) => ({ root, first: null, diverged, ranks_b: [] }) as unknown as DiffReport;
const point = (rank: number, mean: number, micro_batch = 0, call = 0) => ({ rank, micro_batch, call, stats: { mean } }) as unknown as SeriesPoint;

test('the root is shown where it is, in each run', () => {
  const root = found(5, 3, 0.01, { micro_batch: 1, call: 2, rank_b: 1 });
  expect(foundIn(report([found(5, 0, 9)], root), row, 4, 7)).toBe(root);
  expect(placesOf(root)).toEqual({ a: '3/1/2', b: '1/1/2' });
  expect(placesOf(found(5, 7, 1, { ranks_a: [2, 3], ranks_b: [0] }))).toEqual({ a: '2/0/0', b: '0/0/0' });
});

test('of another cell it is the farthest difference that the report lists', () => {
  const listed = report([found(5, 0, 0.1), found(5, 1, 0.4), found(6, 2, 0.2), found(5, 3, 9, { mode: 'eval' })]);
  expect(foundIn(listed, row, 5, 5)?.rank).toBe(1);
  expect(foundIn(listed, row, 6, 9)?.rank).toBe(2);
  expect(foundIn(listed, row, 7, 9)).toBeNull();
  expect(foundIn(report([found(5, 0, 0.1), found(5, 1, null), found(5, 2, 'Infinity')]), row, 5, 5)?.rank).toBe(1);
});

test('what no report lists is shown at the first place that differs', () => {
  expect(firstPlace([point(0, 1), point(0, 2, 1)], [point(0, 1), point(0, 3, 1)])).toBe('0/1/0');
  expect(firstPlace([point(1, 1)], [point(1, 1)])).toBe('1/0/0');
  expect(firstPlace([], [point(2, 1)])).toBe('2/0/0');
  expect(firstPlace([], [])).toBe('');
});

test('a run without data at the place is not shown at another one', () => {
  const points = [point(0, 1), point(0, 2, 1)];
  expect(pointAt(points, '0/1/0')).toBe(points[1]);
  expect(pointAt(points, '1/1/0')).toBeNull();
  expect(pointAt(points, '1/1/0', true)).toBe(points[1]);
});

test('rows of both runs are of one place', () => {
  const a = [point(0, 1), point(1, 2)];
  const b = [point(1, 3), point(2, 4)];
  expect(pairAt(a, b, '')).toEqual([a[1], b[0]]);
  expect(pairAt(a, b, '2/0/0')).toEqual([null, b[1]]);
  expect(pairAt(a, [], '5/0/0')).toEqual([a[0], null]);
  expect(pairAt([], [], '')).toEqual([null, null]);
});

test('parts of tensors are compared unless the ranks were put together', () => {
  expect(comparesParts(report([found(0, 0, 1)]))).toBe(true);
  expect(comparesParts(report([found(0, 0, 1, { ranks_a: [0, 1] })]))).toBe(false);
  expect(comparesParts(report([]))).toBe(false);
});

test('the place is in the URL', () => {
  expect(parseRoute('?view=compare&a=x&b=y&place=3%2F1%2F2').place).toBe('3/1/2');
  expect(parseRoute('?place=3/1').place).toBe('');
  expect(hrefOf({ view: 'compare', place: '3/1/2' })).toBe('/?view=compare&place=3%2F1%2F2');
});

test('of a place one part changes, and the others stay if they can', () => {
  const at = (rank: number, micro_batch: number, call: number) => ({ rank, micro_batch, call });
  const places = [at(0, 0, 0), at(0, 0, 1), at(0, 1, 0), at(1, 1, 0), at(1, 1, 1)];
  expect(nearest(places, at(0, 1, 0), 'rank', 1)).toEqual(at(1, 1, 0));
  expect(nearest(places, at(0, 0, 1), 'rank', 1)).toEqual(at(1, 1, 1));
  expect(nearest(places, at(0, 0, 1), 'micro_batch', 1), 'there is no such call').toEqual(at(0, 1, 0));
  expect(nearest([], at(0, 0, 0), 'call', 2)).toEqual(at(0, 0, 2));
});
