import { describe, expect, it } from 'vitest';
import type { ExponentRow } from '../src/api/types';
import { csvText, fileName } from '../src/parts/download';
import { binsOf, differencesOf, numbersOf, placeOf } from '../src/views/capture_model';
import { FORMATS, sharesOf, spanOf } from '../src/views/exponent_model';

const bytes = (...of: number[]) => Uint8Array.from(of);

describe('captured bytes', () => {
  it('are numbers of their type', () => {
    expect([...numbersOf(bytes(0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0), 'f32')!]).toEqual([1, -2]);
    expect([...numbersOf(bytes(0x00, 0x3c, 0x01, 0x00, 0x00, 0x7c, 0x00, 0xfe), 'f16')!]).toEqual([1, 2 ** -24, Infinity, NaN]);
    expect([...numbersOf(bytes(0x80, 0x3f, 0x20, 0xc0), 'bf16')!]).toEqual([1, -2.5]);
    expect([...numbersOf(bytes(0x38, 0x7e, 0x7f, 0x01), 'f8e4m3')!]).toEqual([1, 448, NaN, 2 ** -9]);
    expect([...numbersOf(bytes(0x3c, 0x7b, 0x7c, 0x01), 'f8e5m2')!]).toEqual([1, 57344, Infinity, 2 ** -16]);
    expect([...numbersOf(bytes(255, 255, 255, 255, 255, 255, 255, 255), 'i64')!]).toEqual([-1]);
    expect(numbersOf(bytes(1), 'c64')).toBeNull();
  });

  it('that are equal do not differ, also where they are NaN', () => {
    const found = differencesOf(Float64Array.from([1, NaN, 3, 4, NaN]), Float64Array.from([1, NaN, 3.5, 2, 1]), [5]);
    expect(found.different).toBe(3);
    expect(found.farthest.map((one) => one.place)).toEqual(['[4]', '[3]', '[2]']);
    expect([...found.deltas]).toEqual([0, 0, 0.5, -2, NaN]);
    expect(placeOf(7, [2, 4])).toBe('[1, 3]');
  });

  it('fall into bins on one axis', () => {
    const bins = binsOf([Float64Array.from([0, 1, NaN]), Float64Array.from([2, Infinity])], 2);
    expect(bins).toEqual({ low: 0, high: 2, counts: [[1, 1], [0, 1]], notFinite: [1, 1] }); // prettier-ignore
    expect(binsOf([Float64Array.from([NaN])], 4).counts).toEqual([[0, 0, 0, 0]]);
    expect(binsOf([Float64Array.from([3, 3])], 2).counts).toEqual([[0, 2]]);
  });
});

describe('exponents', () => {
  const row = { lowest: -30, counts: [1, 0, 3], components: 4 } as ExponentRow;
  it('are shares between the limits that are shown', () => {
    const [low, high] = spanOf([row]);
    expect(low).toBeLessThan(-30);
    expect(high).toBeGreaterThan(16);
    const shares = sharesOf(row, low, high);
    expect(shares[-30 - low]).toBe(0.25);
    expect(shares[-28 - low]).toBe(0.75);
    expect(shares.reduce((sum, share) => sum + share, 0)).toBe(1);
  });
  it('have the limits of the documentation', () => {
    for (const format of FORMATS) expect(format.subnormal < format.normal && format.normal < format.overflow).toBe(true);
  });
});

describe('a file of what is shown', () => {
  it('is CSV that no name can break', () => {
    expect(csvText([['a,b', 'say "x"', null, 1.5, NaN], ['=cmd()', 'plain']])).toBe('"a,b","say ""x""",,1.5,NaN\r\n\'=cmd(),plain\r\n'); // prettier-ignore
  });
  it('has a name without a path', () => {
    expect(fileName(['../../etc', '<b>', 'blocks.1.ln2'], 'csv')).toBe('.._.._etc-_b_-blocks.1.ln2.csv');
    expect(fileName([], 'png')).toBe('statcollect.png');
  });
});
