// The rows of one sequence of tokens as a heat map: taps over positions.
import { bytesOf, numberOf } from '../api/client';
import type { Tokens } from '../api/types';
import { DIVERGED_MIN } from '../heat/levels';
import type { Heat } from '../heat/model';
import type { Line } from '../parts/lines';
import { count, shown } from '../text';

type Sequence = Tokens['sequences'][number];

export const VALUES_SHOWN = 2; // taps of one column, such as log-probabilities

/** The map of the answer's sequence; null: it has none. */
export function heatOfTokens(found: Tokens): Heat | null {
  const { sequence } = found;
  if (!sequence?.of || found.taps.length === 0) return null;
  const columns = sequence.ids.length;
  const cells = bytesOf(sequence.cells);
  const first = sequence.of.first_position;
  const positions = Array.from({ length: columns }, (_, i) => first + i);
  // The first tap that parts in this sequence, and there the first position.
  const origin = cells.findIndex((level) => level >= DIVERGED_MIN);
  return {
    axes: { column: 'position', columns: 'positions', rows: 'taps' },
    rows: found.taps.map(({ tap, tap_b }) => ({ activation: tap, activation_b: tap_b, output_path: '', kind: null, mode: 'train', stage: null, tensors: 1 })),
    columns,
    first: positions,
    last: positions,
    cells,
    originRow: origin < 0 ? null : Math.floor(origin / columns),
    originColumn: origin < 0 ? null : origin % columns,
    originSpan: true,
  };
}

export interface ValueLines {
  tap: string;
  lines: readonly [Line, Line];
}

/** What the taps of one column had for each token, of both runs, on the map's axis. */
export function valuesOf(found: Tokens): ValueLines[] {
  const pointsOf = (values: readonly (number | 'NaN' | 'Infinity' | '-Infinity')[]) =>
    values.map((value, i) => {
      const y = numberOf(value);
      return [i + 0.5, y !== null && Number.isFinite(y) ? y : null] as const;
    });
  return (found.sequence?.values ?? []).slice(0, VALUES_SHOWN).map(({ tap, a, b }) => ({
    tap: found.taps[tap]?.tap ?? '',
    lines: [
      { label: shown(found.run_a, 40), run: 'a', points: pointsOf(a) },
      { label: shown(found.run_b, 40), run: 'b', points: pointsOf(b) },
    ],
  }));
}

export function sequenceText({ first_position, last_position, diverged }: Sequence, exact: boolean): string {
  const tokens = last_position - first_position + 1;
  const where = `${count(tokens)} token${tokens === 1 ? '' : 's'}${first_position === 0 ? '' : ` from position ${first_position}`}`;
  if (diverged === 0) return exact ? `${where}, equal` : `${where}, within rounding`;
  return `${where}, ${count(diverged)} row${diverged === 1 ? '' : 's'} ${exact ? 'with other bits' : 'beyond rounding'}`;
}

/** The sequences to choose from: those of the list, and the one that is shown. Some have the same words: they are numbered. */
export function choicesOf(found: Tokens): [key: string, text: string][] {
  const shownOne = found.sequence?.of;
  const listed = found.sequences.some(({ key }) => key === shownOne?.key) || !shownOne ? found.sequences : [...found.sequences, shownOne];
  return listed.map((one, i) => [one.key, `${i + 1}: ${sequenceText(one, found.exact)}`]);
}
