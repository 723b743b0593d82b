import { expect, test } from 'vitest';
import type { RunSummary, ZoomCall } from '../src/api/types';
import { isAround, rowsOf, zoomedRuns, zoomNames } from '../src/views/zoom';

const runs = (...names: string[]) => names.map((run) => ({ run, state: run.startsWith('live') ? 'running' : 'finished' }) as RunSummary);
const operator = (number: number) => ({ number, name: `aten.op${number}`, place: 'model.py:1', function: 'f', arguments: [], results: [] });

test('the zoom of a comparison is that of the runs made for it, once both are there and ended', () => {
  expect(zoomedRuns('a', 'b', runs('a', 'b', 'a.zoom', 'b.zoom'))).toEqual(['a.zoom', 'b.zoom']);
  expect(zoomedRuns('a', 'b', runs('a', 'b', 'a.zoom'))).toEqual(['a', 'b']);
  expect(zoomedRuns('live', 'b', runs('live', 'b', 'live.zoom', 'b.zoom'))).toEqual(['live', 'b']);
  expect(zoomNames('x'.repeat(124), 'b')).toEqual(['b.zoom']);
});

test('operators of a block have no partner; otherwise both runs have the operator', () => {
  const call = { outcome: 'operator', a: [operator(1)], b: [operator(2)] } as unknown as ZoomCall;
  expect(rowsOf(call)).toEqual([{ a: operator(1), b: operator(2) }]);
  expect(rowsOf({ ...call, outcome: 'block', a: [operator(1), operator(2)] })).toEqual([
    { a: operator(1), b: undefined },
    { a: operator(2), b: undefined },
    { a: undefined, b: operator(2) },
  ]);
});

test('a zoom belongs to a root in its module', () => {
  expect(['attn', 'attn.out', 'att', 'mlp', 'attn.out.x'].map((module) => isAround(module, 'attn.out'))).toEqual([true, true, false, false, false]);
});
