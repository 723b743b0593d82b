import { describe as group, expect, test } from 'vitest';
import { folded, groupsOf, moduleOf, rowBehind, toggled, windowBehind, windowDrawn } from '../src/heat/fold';
import type { Heat } from '../src/heat/model';

/** "stage name levels" a line. */
function heat(text: string, origin: number | null = null): Heat {
  const lines = text.trim().split('\n').map((line) => line.trim().split(' '));
  const columns = lines[0]!.length - 2;
  return {
    rows: lines.map(([stage, activation]) => ({ stage, activation, kind: 'output', output_path: '', activation_b: '', mode: 'train', tensors: 1 })) as unknown as Heat['rows'],
    columns,
    first: Array.from({ length: columns }, (_, i) => i),
    last: Array.from({ length: columns }, (_, i) => i),
    cells: Uint8Array.from(lines.flatMap((line) => line.slice(2).map(Number))),
    originRow: origin,
    originColumn: origin === null ? null : 1,
  };
}

const MAP = heat(
  `weights embed.weight 1 0 0
   weights net.0.weight 1 0 0
   forward embed 1 1 1
   forward net.0.fc 1 1 1
   forward net.0.act 1 130 140
   forward net.0 1 128 150
   forward net.1.fc 1 1 128
   grad net.0.fc.weight 1 1 1
   grad net.0.fc.bias 1 2 127`,
  4,
);

test('a module is what comes up to the first number', () => {
  expect(['blocks.1.ln2', 'model.layers.3.mlp.up', 'embed', 'encoder.norm.weight', '0.weight', '3'].map(moduleOf)).toEqual(['blocks.1', 'model.layers.3', 'embed', 'encoder', '0', '3']);
});

group('rows of a map', () => {
  test('are grouped by module within a stage, and a stage of one column is a strip', () => {
    expect(groupsOf(MAP).map(({ name, first, rows, strip }) => [name, first, rows, strip])).toEqual([
      ['weights', 0, 2, true],
      ['embed', 2, 1, false],
      ['net.0', 3, 3, false],
      ['net.1', 6, 1, false],
      ['net.0', 7, 2, false],
    ]);
  });

  test('show the greatest of what is folded, and the origin wherever it is', () => {
    const none = folded(MAP, 'none');
    expect(none.heat.rows.map((row) => row.activation)).toEqual(['weights', 'embed', 'net.0', 'net.1.fc', 'net.0']);
    expect([...none.heat.cells]).toEqual([1, 0, 0, 1, 1, 1, 1, 130, 150, 1, 1, 128, 1, 2, 127]);
    expect(none.heat.originRow).toBe(2);
    expect(rowBehind(MAP, none, 2, 1), 'which of them it is').toBe(4);
    expect(rowBehind(MAP, none, 2, 2)).toBe(5);
    expect(folded(MAP, 'all').heat).toBe(MAP);
  });

  test('of a small map are unfolded but for strips; of a large one only the group of the origin', () => {
    expect(folded(MAP, '').open).toEqual([false, true, true, true, true]);
    const large = heat(Array.from({ length: 90 }, (_, i) => `forward net.${Math.floor(i / 30)}.fc${i % 30} 1 1 1`).join('\n'), 40);
    expect(folded(large, '').open).toEqual([false, true, false]);
  });

  test('are folded and unfolded by a click, and the link says which', () => {
    const fold = folded(MAP, '');
    expect(toggled(fold, 4)).toBe('2');
    expect(toggled(fold, 0)).toBe('0,2,4');
    expect(toggled(folded(MAP, '2'), 2)).toBe('none');
    expect(folded(MAP, '2,99').open).toEqual([false, true, true, true, false]);
    expect(folded(MAP, 'nonsense').open, 'an address that nobody made').toEqual([false, true, false, true, false]);
  });

  test('keep their window, whatever is folded', () => {
    const none = folded(MAP, 'none');
    const window = { row: 2, rows: 2, column: 0, columns: 3 };
    expect(windowBehind(none, window)).toEqual({ row: 3, rows: 4, column: 0, columns: 3 });
    expect(windowDrawn(none, windowBehind(none, window))).toEqual(window);
    expect(windowDrawn(folded(MAP, 'all'), window)).toEqual(window);
  });

  test('of a map that goes up and down show what is farthest from the middle', () => {
    const map = { ...heat('forward net.0.a 10 130 255\nforward net.0.b 140 0 200\nforward net.1 128 128 128'), centre: 128 };
    expect([...folded(map, 'none').heat.cells].slice(0, 3)).toEqual([10, 130, 255]);
  });
});
