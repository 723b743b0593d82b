// Alarms on the map of a run.
import type { EventRow } from '../api/types';
import { columnOf, type Heat } from './model';

const MARKS_MAX = 500; // that are drawn at once

/** Where alarms lie on the map: those that name a tensor of it. */
export function marksOf(heat: Heat, events: readonly EventRow[]): { row: number; column: number }[] {
  const rows = new Map<string, number>();
  heat.rows.forEach((row, i) => {
    for (const key of [`${row.activation}\0${row.kind ?? ''}`, `${row.activation}\0`]) if (!rows.has(key)) rows.set(key, i);
  });
  const found = new Map<string, { row: number; column: number }>();
  for (const event of events) {
    const row = rows.get(`${event.fields['activation'] ?? ''}\0${event.fields['kind'] ?? ''}`);
    const column = columnOf(heat, event.step);
    if (row === undefined || event.step < (heat.first[column] ?? Infinity) || event.step > (heat.last[column] ?? -1)) continue;
    found.set(`${row}/${column}`, { row, column });
    if (found.size === MARKS_MAX) break;
  }
  return [...found.values()];
}
