import { describe, expect, it } from 'vitest';
import type { Tokens } from '../src/api/types';
import { choicesOf, heatOfTokens, sequenceText, valuesOf } from '../src/views/tokens_model';

const tap = (name: string) => ({ tap: name, tap_b: '' }) as Tokens['taps'][number];
const found = {
  run_a: 'trainer',
  run_b: 'engine',
  exact: false,
  taps: [tap('embed'), tap('layers.0'), tap('logprob')],
  sequences: [{ key: '0x1', first_position: 0, last_position: 2, diverged: 2 }],
  sequence: {
    of: { key: '0x2', first_position: 4, last_position: 6, diverged: 1 },
    ids: [7, -1, 9],
    cells: '010101' + '0280ff' + '0180ff',
    values: [{ tap: 2, a: [-1, 'NaN', -3], b: [-1, -2, '-Infinity'] }],
  },
} as unknown as Tokens;

describe('a sequence of tokens', () => {
  it('is a map of taps over positions, with the first tap that parts as its origin', () => {
    const heat = heatOfTokens(found)!;
    expect(heat.rows.map((row) => row.activation)).toEqual(['embed', 'layers.0', 'logprob']);
    expect([heat.columns, heat.first]).toEqual([3, [4, 5, 6]]);
    expect([heat.originRow, heat.originColumn]).toEqual([1, 1]);
    expect(heatOfTokens({ ...found, sequence: null })).toBeNull();
  });

  it('has the values of both runs above it, and gaps where a run has none', () => {
    const [values] = valuesOf(found);
    expect(values!.tap).toBe('logprob');
    expect(values!.lines[0].points).toEqual([[0.5, -1], [1.5, null], [2.5, -3]]);
    expect(values!.lines[1].points).toEqual([[0.5, -1], [1.5, -2], [2.5, null]]);
  });

  it('can be chosen, also if it is not one of those that part most', () => {
    expect(choicesOf(found)).toEqual([
      ['0x1', '1: 3 tokens, 2 rows beyond rounding'],
      ['0x2', '2: 3 tokens from position 4, 1 row beyond rounding'],
    ]);
    expect(sequenceText({ key: '', first_position: 0, last_position: 0, diverged: 0 }, true)).toBe('1 token, equal');
  });
});
