// The losses of two runs above the heat map of their distance, and the table behind it.
import type { ComponentChildren } from 'preact';
import { useMemo, useRef, useState } from 'preact/hooks';
import type { DiffReport } from '../api/types';
import { entryOf, folded, type Fold, rowBehind, windowBehind, windowDrawn } from '../heat/fold';
import { gutterOf, HeatMapView, heightOf, Legend } from '../heat/heat_map';
import { rowText } from '../heat/row_names';
import { describe, stateOf } from '../heat/levels';
import { columnOf, placeOf, stepsText, summaries, type Heat } from '../heat/model';
import type { Window } from '../heat/paint';
import { Chart } from '../parts/chart';
import { differenceOf, needsLog, type Line } from '../parts/lines';
import { useWidth } from '../parts/theme';
import { count, words } from '../text';
import { originMark } from './verdict';

export interface CellPlace {
  row: number;
  column: number;
}

interface Props {
  report: DiffReport;
  heat: Heat;
  table?: Heat; // what the table shows, if the picture has too many cells for one
  lines: readonly Line[];
  reading: boolean; // the losses
  window: Window;
  chosen: CellPlace | null;
  onChoose: (cell: CellPlace) => void;
  onWindow: (window: Window) => void;
  open: string; // the groups of rows that are unfolded (heat/fold.ts)
  onOpen: (open: string) => void;
  children?: ComponentChildren; // about the chosen cell
}

export function HeatPicture({ report, heat: found, table = found, lines, reading, window, chosen, onChoose, onWindow, open, onOpen, children }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  // Only runs that diverge have an origin; the collector also marks a difference that rounding explains.
  const diverged = report.text?.verdict === 'DIVERGED';
  const heat = useMemo(() => (diverged ? found : { ...found, originRow: null, originColumn: null }), [found, diverged]);
  const gutter = gutterOf(width);
  const fold = useMemo(() => folded(heat, open), [heat, open]);
  const stepText = (x: number) => (heat.first[Math.floor(x)] === undefined ? '' : `step ${heat.first[Math.floor(x)]}`);
  const origin = heat.originRow !== null && heat.originColumn !== null ? { row: heat.originRow, column: heat.originColumn } : null;
  const map = report.heat_map;
  const difference = useMemo(() => (lines[0] && lines[1] ? differenceOf(lines[0], lines[1]) : null), [lines]);
  const equal = difference !== null && difference.points.length > 0 && difference.points.every(([, y]) => y === null);
  const mark = useMemo(() => {
    const at = originMark(report);
    return at && { ...at, x: placeOf(heat, at.x) };
  }, [report, heat]);
  const chart = { gutter, range: [window.column, window.column + window.columns] as const, stepText, axis: false, mark };
  return (
    <div class="picture" ref={box}>
      {lines.some((line) => line.points.length > 0) ? (
        <>
          <Chart label="Loss" lines={lines} height={width < 600 ? 100 : 110} log={needsLog(lines)} {...chart} />
          {equal ? (
            <p class="note">The losses are equal in every step.</p>
          ) : difference && difference.points.length > 0 ? (
            <Chart label="|A − B| / |A| of the loss" lines={[difference]} height={width < 600 ? 76 : 80} log {...chart} />
          ) : null}
        </>
      ) : (
        <p class="note">{reading ? 'Reading the losses…' : 'Neither run logged a loss.'}</p>
      )}
      <HeatMapView
        heat={fold.heat}
        window={windowDrawn(fold, window)}
        chosen={chosen && { ...chosen, row: entryOf(fold.entries, chosen.row) }}
        onChoose={(cell) => onChoose({ ...cell, row: rowBehind(heat, fold, cell.row, cell.column) })}
        onWindow={(next) => onWindow(windowBehind(fold, next))}
        gutter={gutter}
        height={heightOf(fold.heat, width < 600)}
        line={mark?.x ?? -1}
        fold={fold}
        onFold={onOpen}
      />
      <div class="bar under">
        <Legend />
        <span class="grow" />
        <FoldAll fold={fold} onOpen={onOpen} />
        {origin ? (
          <button type="button" class="main" onClick={() => onChoose(origin)}>
            Show the origin
          </button>
        ) : null}
      </div>
      <p class="note">
        {count(map?.tensors ?? 0)} tensors in the order of execution, {count(map?.steps ?? 0)} steps. Drag to zoom, Shift and drag to move, click a cell to see both runs, click the name of a module to fold or unfold it.
      </p>
      {children}
      <Behind heat={table} onChoose={(cell) => onChoose(table === found ? cell : placeIn(heat, table, cell))} />
    </div>
  );
}

/** One button for all groups. */
export function FoldAll({ fold, onOpen }: { fold: Fold; onOpen: (open: string) => void }) {
  if (!fold.groups.some((group) => group.rows > 1)) return null;
  const all = fold.open.every(Boolean);
  return (
    <button type="button" class="quiet" onClick={() => onOpen(all ? 'none' : 'all')}>
      {all ? 'Fold all' : 'Unfold all'}
    </button>
  );
}

/** The place in `heat` of a cell of a coarser map of the same. */
function placeIn(heat: Heat, coarse: Heat, cell: CellPlace): CellPlace {
  const before = coarse.rows.slice(0, cell.row).reduce((sum, row) => sum + row.tensors, 0);
  return { row: Math.min(heat.rows.length - 1, before), column: columnOf(heat, coarse.first[cell.column] ?? 0) };
}

function Behind({ heat, onChoose }: { heat: Heat; onChoose: (cell: { row: number; column: number }) => void }) {
  const [open, setOpen] = useState(false); // a table of many rows takes longer than the picture
  return (
    <details class="behind" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>The same as a table</summary>
      {open ? <Table heat={heat} onChoose={onChoose} /> : null}
    </details>
  );
}

function Table({ heat, onChoose }: { heat: Heat; onChoose: (cell: { row: number; column: number }) => void }) {
  const rows = useMemo(() => summaries(heat), [heat]);
  return (
    <div class="scroll tall" tabIndex={0} role="region" aria-label="Heat map as a table">
      <table class="rows">
        <thead>
          <tr>
            <th scope="col">Tensor</th>
            <th scope="col">Stage</th>
            <th scope="col">Worst</th>
            <th scope="col" class="number">
              Diverged steps
            </th>
            <th scope="col">First</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(({ index, row, worst, diverged, first }) => (
            <tr key={index}>
              <th scope="row">
                <button type="button" class="sort" onClick={() => onChoose({ row: index, column: first ?? 0 })}>
                  <bdi class="name">{rowText(heat, index)}</bdi>
                </button>
              </th>
              <td>{words(row.stage)}</td>
              <td>{stateOf(worst) === 'diverged' ? describe(worst) : stateOf(worst)}</td>
              <td class="number">
                {diverged} of {heat.columns}
              </td>
              <td>{first === null ? '' : stepsText(heat, first)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
