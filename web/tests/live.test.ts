import { describe, expect, it } from 'vitest';
import { EventParser, RunsBoard } from '../src/api/live';
import type { LiveMessage, RunSummary } from '../src/api/types';
import { sliceOf } from '../src/parts/slice';
import { grown } from '../src/views/scalars';

const run = (name: string, records: number) => ({ run: { run: name, records } as RunSummary, events: 0 });
const message = (more: Partial<LiveMessage>): LiveMessage => ({ cursor: '1-1', whole: false, runs: [], removed: [], caught_up: true, ...more });

describe('events', () => {
  it('are found however the stream is cut', () => {
    const text = ': nothing new\n\nid: 1-2\nevent: runs\ndata: {"a":1}\n\nid: 1-3\ndata: x\ndata: y\n\nid: 1-4\ndata: half';
    for (let size = 1; size < text.length; ++size) {
      const parser = new EventParser();
      const found: string[] = [];
      for (let at = 0; at < text.length; at += size) found.push(...parser.push(text.slice(at, at + size)));
      expect(found).toEqual(['{"a":1}', 'x\ny']);
    }
  });

  it('leave the runs as the collector has them', () => {
    const board = new RunsBoard();
    expect(board.take(message({ whole: true, caught_up: false, runs: [run('a', 1)] }))).toBeNull();
    expect(board.take(message({ runs: [run('b', 2)], cursor: '1-2' }))?.runs.map((one) => one.run)).toEqual(['a', 'b']);
    expect(board.take(message({ runs: [run('a', 5)], removed: ['b'], cursor: '1-4' }))?.runs.map((one) => one.records)).toEqual([5]);
    expect(board.cursor).toBe('1-4');
    const anew = board.take(message({ whole: true, runs: [run('c', 1)] }));
    expect(anew?.runs.map((one) => one.run)).toEqual(['c']);
  });
});

describe('scalars', () => {
  it('are replaced from the step that was asked for again', () => {
    const at = (step: number, value: number) => ({ step, value, name: 'loss', rank: 0, micro_batch: 0 }) as never;
    expect(grown([at(0, 1), at(1, 2), at(2, 9)], 2, [at(2, 3), at(3, 4)])).toEqual([at(0, 1), at(1, 2), at(2, 3), at(3, 4)]);
  });
});

describe('a slice of a table', () => {
  it('holds the rows that are seen and few others', () => {
    for (const top of [0, 1, 5000, 399_000, 400_000, 1e9]) {
      const { first, end } = sliceOf(10_000, top, 600, 40);
      expect(first).toBeGreaterThanOrEqual(0);
      expect(end).toBeLessThanOrEqual(10_000);
      expect(end - first).toBeLessThan(80);
      const seen = Math.min(9999, Math.floor(top / 40));
      if (top < 400_000) expect(first <= seen && seen < end).toBe(true);
    }
  });
});
