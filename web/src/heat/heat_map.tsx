// The heat map: step x tensor in the order of execution. Drag to zoom, click or Enter to choose a cell.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { useTheme, useWidth, type Theme } from '../parts/theme';
import { count, shown, words } from '../text';
import { coloursOf, css, describe, paletteOf, type Rgb, IDENTICAL, MISSING, NO_DATA, DIVERGED_MIN, WITHIN_MAX } from './levels';
import { toggled, type Fold } from './fold';
import { clamped, levelAt, stepsText, whole, zoomed, type Heat } from './model';
import type { Window } from './paint';
import { makePainter, type Painter } from './painter';
import type { Order, PaintOrder } from './pictures';

interface Cell {
  row: number;
  column: number;
}
interface Props {
  heat: Heat;
  window: Window;
  onWindow: (window: Window) => void;
  chosen: Cell | null;
  onChoose: (cell: Cell) => void;
  gutter: number;
  height: number;
  colours?: (theme: Theme) => readonly Rgb[]; // of the 256 levels; without it those of distances
  levelText?: (cell: Cell) => string;
  marks?: readonly Cell[];
  line?: number; // a place on the axis of columns, marked from top to bottom
  fold?: Fold | undefined; // how the rows are grouped; `heat` is its heat
  onFold?: ((open: string) => void) | undefined;
}

/** Asks for the newest picture only, and shows none that is older. */
function usePainter(heat: Heat, canvas: { current: HTMLCanvasElement | null }) {
  const painter = useRef<Painter | null>(null);
  const state = useRef({ asked: 0, busy: false, next: null as PaintOrder | null });
  // The painter has its orders before the browser draws the rest of the page.
  useLayoutEffect(() => {
    const made = makePainter(({ id, width, height, pixels, milliseconds }) => {
      const target = canvas.current;
      if (target) {
        if (target.width !== width) target.width = width;
        if (target.height !== height) target.height = height;
        target.getContext('2d')?.putImageData(new ImageData(pixels, width, height), 0, 0);
        if (!target.dataset['painted']) performance.mark('heat map'); // bench/page.py reads it
        target.dataset['painted'] = String(id);
        target.dataset['milliseconds'] = milliseconds.toFixed(1);
      }
      const next = state.current.next;
      state.current.next = null;
      state.current.busy = next !== null;
      if (next) made.send({ what: 'paint', ...next });
    });
    painter.current = made;
    return () => made.end();
  }, []);
  const [tiles, setTiles] = useState(0);
  useLayoutEffect(() => {
    const send = (order: Order) => painter.current?.send(order);
    if (!heat.tiles) return send({ what: 'cells', cells: heat.cells, stride: heat.columns });
    send({ what: 'tiles', whole: heat.tiles.whole });
    for (const tile of heat.tiles.tiles.values()) send({ what: 'tile', tile });
    return heat.tiles.listen((tile) => {
      send({ what: 'tile', tile });
      setTiles((old) => old + 1);
    });
  }, [heat]);
  const draw = (window: Window, width: number, height: number, palette: Uint32Array) => {
    heat.tiles?.look(window, width, height);
    const order = { id: ++state.current.asked, window, width, height, palette };
    if (state.current.busy) {
      state.current.next = order;
      return;
    }
    state.current.busy = true;
    painter.current?.send({ what: 'paint', ...order });
  };
  return { draw, tiles };
}

export function rowText(heat: Heat, row: number): string {
  const at = heat.rows[row];
  if (!at) return '';
  if (at.kind === null && at.tensors > 1) return `${shown(at.activation, 120)}, ${count(at.tensors)} tensors`; // folded
  const path = at.output_path === '' || at.output_path === '0' ? '' : `[${at.output_path}]`;
  const more = at.tensors > 1 ? ` and ${at.tensors - 1} more` : '';
  return `${shown(at.activation, 120)}${shown(path, 40)} ${words(at.kind)}${at.mode === 'eval' ? ' (eval)' : ''}${more}`;
}

function cellText(heat: Heat, { row, column }: Cell, levelText?: (cell: Cell) => string): string {
  const origin = row === heat.originRow && column === heat.originColumn ? ' – the origin' : '';
  return `${stepsText(heat, column)}, ${rowText(heat, row)}: ${levelText ? levelText({ row, column }) : describe(levelAt(heat, row, column))}${origin}`;
}

function bands(heat: Heat, window: Window) {
  const found: { stage: string; row: number; rows: number }[] = [];
  for (let row = window.row; row < window.row + window.rows; ++row) {
    const stage = words(heat.rows[row]?.stage ?? '');
    const last = found.at(-1);
    if (last && last.stage === stage) ++last.rows;
    else found.push({ stage, row, rows: 1 });
  }
  return found;
}

function ticks(window: Window, width: number): number[] {
  const most = Math.max(2, Math.floor(width / 70));
  const raw = window.columns / most;
  const power = 10 ** Math.floor(Math.log10(Math.max(1, raw)));
  const every = Math.max(1, [1, 2, 5, 10].map((m) => m * power).find((step) => step >= raw) ?? 1);
  const found: number[] = [];
  for (let column = Math.ceil(window.column / every) * every; column < window.column + window.columns; column += every) found.push(column);
  return found;
}

// The kind that goes without saying beside the stage.
const USUAL = ['forward/output', 'backward/grad_output', 'grad/weight_grad', 'weights/weight', 'optimizer/weight', 'optimizer/optimizer_state'];

/** As rowText, as short as the stage beside it allows. */
function nameText(heat: Heat, row: number): string {
  const at = heat.rows[row];
  return at && at.tensors === 1 && USUAL.includes(`${at.stage}/${at.kind}`) ? rowText({ ...heat, rows: [{ ...at, kind: null }] }, 0).trim() : rowText(heat, row);
}

const NAME_HEIGHT = 12; // that a name needs

/** Beside the rows: their stages, groups and names. A group's name folds and unfolds it. */
function RowNames({ heat, window, gutter, height, fold, onFold }: Pick<Props, 'heat' | 'window' | 'gutter' | 'height' | 'fold' | 'onFold'>) {
  const each = height / Math.max(1, window.rows);
  const y = (row: number) => (row - window.row) * each;
  const stages = bands(heat, window);
  const grouped = fold !== undefined && fold.groups.length > 0;
  if (each < NAME_HEIGHT && !grouped) {
    return (
      <div class="heat-rows" style={{ height: `${height}px` }} aria-hidden="true">
        {stages.map((band) => (
          <div key={band.row} class="heat-band" style={{ top: `${y(band.row)}px`, height: `${band.rows * each}px` }}>
            {band.rows * each >= 14 ? band.stage : ''}
          </div>
        ))}
      </div>
    );
  }
  const narrow = gutter < 140;
  const labels = [];
  let free = 0; // below the last label
  for (let row = window.row; row < window.row + window.rows; ++row) {
    const entry = fold?.entries[row];
    const group = entry && fold?.groups[entry.group];
    const isFolded = entry !== undefined && entry.rows > 1;
    const begins = entry !== undefined && group !== undefined && group.rows > 1 && (entry.first === group.first || row === window.row);
    if (y(row) < free - 0.5 || (each < NAME_HEIGHT && !begins)) continue;
    free = y(row) + NAME_HEIGHT;
    const full = nameText(heat, row);
    const inside = group && group.rows > 1 && !group.strip && full.startsWith(`${group.name}.`) ? full.slice(group.name.length + 1) : full;
    const name = narrow ? (heat.rows[row]?.activation ?? inside) : inside;
    labels.push(
      <div key={row} class={isFolded ? 'heat-name folded' : 'heat-name'} style={{ top: `${y(row)}px`, height: `${Math.max(each, NAME_HEIGHT)}px` }}>
        {begins && onFold ? (
          <button type="button" class="fold" aria-expanded={!isFolded} title={`${isFolded ? 'Unfold' : 'Fold'} ${shown(group.name, 120)}`} onClick={() => onFold(toggled(fold!, entry.group))}>
            <span aria-hidden="true">{isFolded ? '▸' : '▾'} </span>
            <bdi>{shown(group.name, 120)}</bdi>
          </button>
        ) : null}
        {isFolded ? (
          <span class="soft">{narrow ? '' : count(heat.rows[row]?.tensors ?? 0)}</span>
        ) : each >= NAME_HEIGHT && !(narrow && begins) ? (
          <span class="row-name">
            <bdi dir="ltr">{name}</bdi>
          </span>
        ) : null}
      </div>,
    );
  }
  return (
    <div class="heat-rows" style={{ height: `${height}px` }}>
      {stages.map((band) =>
        band.rows * each >= 7 * band.stage.length + 6 ? (
          <div key={band.row} class="heat-stage" style={{ top: `${y(band.row)}px`, height: `${band.rows * each}px` }}>
            {band.stage}
          </div>
        ) : null,
      )}
      {labels}
    </div>
  );
}

/** How high a map is drawn: so that names fit beside its rows, within reason. */
export const heightOf = (heat: Heat, narrow: boolean) => (heat.tiles ? (narrow ? 360 : 460) : Math.min(narrow ? 480 : 660, Math.max(narrow ? 240 : 280, heat.rows.length * 15)));
export const gutterOf = (width: number) => (width > 0 && width < 600 ? 96 : 220);

export function HeatMapView({ heat, window: settled, onWindow, chosen, onChoose, gutter, height, colours = coloursOf, levelText, marks = [], line = -1, fold, onFold }: Props) {
  const theme = useTheme();
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(box);
  const palette = useMemo(() => paletteOf(colours(theme)), [theme, colours]);
  const { draw, tiles } = usePainter(heat, canvas);
  const [at, setAt] = useState<Cell | null>(null);
  const [moved, setMoved] = useState<{ from: { x: number; y: number }; began: Window; window: Window } | null>(null);
  const window = moved?.window ?? settled;
  const [brush, setBrush] = useState<{ from: { x: number; y: number }; to: { x: number; y: number } } | null>(null);

  useLayoutEffect(() => {
    if (width === 0 || window.rows === 0) return;
    const scale = Math.min(2, globalThis.devicePixelRatio || 1);
    draw(window, Math.round(width * scale), Math.round(height * scale), palette);
  }, [heat, tiles, width, height, palette, window.row, window.rows, window.column, window.columns]);

  const x = (column: number) => ((column - window.column) / window.columns) * width;
  const y = (row: number) => ((row - window.row) / window.rows) * height;
  const cellAt = (point: { x: number; y: number }): Cell => ({
    row: Math.min(window.row + window.rows - 1, Math.max(window.row, window.row + Math.floor((point.y / height) * window.rows))),
    column: Math.min(window.column + window.columns - 1, Math.max(window.column, window.column + Math.floor((point.x / width) * window.columns))),
  });
  const pointOf = (event: PointerEvent | WheelEvent | MouseEvent) => {
    const frame = box.current!.getBoundingClientRect();
    return { x: Math.min(width, Math.max(0, event.clientX - frame.left)), y: Math.min(height, Math.max(0, event.clientY - frame.top)) };
  };
  const cursor = at ?? chosen ?? { row: heat.originRow ?? window.row, column: heat.originColumn ?? window.column };

  const keep = (cell: Cell) => {
    const row = Math.min(heat.rows.length - 1, Math.max(0, cell.row));
    const column = Math.min(heat.columns - 1, Math.max(0, cell.column));
    setAt({ row, column });
    const inside = row >= window.row && row < window.row + window.rows && column >= window.column && column < window.column + window.columns;
    if (!inside) onWindow(clamped(heat, { ...window, row: Math.min(row, Math.max(window.row, row - window.rows + 1)), column: Math.min(column, Math.max(window.column, column - window.columns + 1)) }));
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const far = event.shiftKey ? 10 : 1;
    const moves: Record<string, [number, number]> = { ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far] };
    const move = moves[event.key];
    if (move) keep({ row: cursor.row + move[0], column: cursor.column + move[1] });
    else if (event.key === 'Home') keep({ row: heat.originRow ?? cursor.row, column: heat.originColumn ?? 0 });
    else if (event.key === 'Enter' || event.key === ' ') onChoose(cursor);
    else if (event.key === '+' || event.key === '=') onWindow(zoomed(heat, window, 0.5, cursor.row, cursor.column));
    else if (event.key === '-') onWindow(zoomed(heat, window, 2, cursor.row, cursor.column));
    else if (event.key === '0' || event.key === 'Escape') onWindow(whole(heat));
    else return;
    event.preventDefault();
  };
  const onWheel = (event: WheelEvent) => {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    const cell = cellAt(pointOf(event));
    onWindow(zoomed(heat, window, event.deltaY > 0 ? 1.25 : 0.8, cell.row, cell.column));
  };
  useEffect(() => {
    const element = box.current;
    element?.addEventListener('wheel', onWheel, { passive: false });
    return () => element?.removeEventListener('wheel', onWheel);
  });
  const move = (to: { x: number; y: number }) => {
    if (!moved) return;
    const { from, began } = moved;
    setMoved({ ...moved, window: clamped(heat, { ...began, column: began.column - ((to.x - from.x) / width) * began.columns, row: began.row - ((to.y - from.y) / height) * began.rows }) });
  };
  const onPointerUp = (event: PointerEvent) => {
    if (moved) {
      onWindow(moved.window);
      return setMoved(null);
    }
    if (!brush) return;
    setBrush(null);
    const to = pointOf(event);
    if (Math.abs(to.x - brush.from.x) < 6 && Math.abs(to.y - brush.from.y) < 6) return onChoose(cellAt(to));
    const one = cellAt(brush.from);
    const other = cellAt(to);
    onWindow(
      clamped(heat, {
        row: Math.min(one.row, other.row),
        rows: Math.abs(one.row - other.row) + 1,
        column: Math.min(one.column, other.column),
        columns: Math.abs(one.column - other.column) + 1,
      }),
    );
  };

  const [tip, setTip] = useState<{ x: number; y: number } | null>(null);
  const mark = (cell: Cell, kind: string) => {
    if (cell.row < window.row || cell.row >= window.row + window.rows || cell.column < window.column || cell.column >= window.column + window.columns) return null;
    const w = Math.max(width / window.columns, 3);
    const h = Math.max(height / window.rows, 3);
    return <div class={`mark ${kind}`} style={{ left: `${x(cell.column)}px`, top: `${y(cell.row)}px`, width: `${w}px`, height: `${h}px` }} />;
  };
  return (
    <div class="heat">
      <div class="heat-body" style={{ gridTemplateColumns: `${gutter}px 1fr` }}>
        <RowNames heat={heat} window={window} gutter={gutter} height={height} fold={fold} onFold={onFold} />
        <div
          ref={box}
          class={moved ? 'heat-canvas moving' : 'heat-canvas'}
          style={{ height: `${height}px` }}
          tabIndex={0}
          role="application"
          aria-roledescription="heat map"
          aria-label={`Heat map of ${heat.rows.length} tensors over ${heat.columns} columns of steps. Arrows move, Enter shows a cell, plus and minus zoom, Home goes to the origin.`}
          onKeyDown={onKeyDown}
          onPointerDown={(event) => {
            if (event.button !== 0) return;
            box.current?.setPointerCapture(event.pointerId);
            const from = pointOf(event);
            if (event.shiftKey) setMoved({ from, began: settled, window: settled });
            else setBrush({ from, to: from });
          }}
          onPointerMove={(event) => {
            const point = pointOf(event);
            setAt(cellAt(point));
            setTip(event.pointerType === 'touch' ? null : point);
            move(point);
            if (brush) setBrush({ ...brush, to: point });
          }}
          onPointerUp={onPointerUp}
          onPointerCancel={() => {
            setBrush(null);
            setMoved(null);
          }}
          onPointerLeave={() => {
            setAt(null);
            setTip(null);
          }}
          onDblClick={() => onWindow(whole(heat))}
        >
          <canvas ref={canvas} />
          {bands(heat, window).slice(1).map((band) => (
            <div key={band.row} class="heat-line" style={{ top: `${y(band.row)}px` }} />
          ))}
          {line > window.column && line < window.column + window.columns ? <div class="heat-origin" style={{ left: `${x(line)}px` }} /> : null}
          {marks.map((cell) => mark(cell, 'alarm'))}
          {chosen ? mark(chosen, 'chosen') : null}
          {at ? mark(at, 'at') : null}
          {heat.originRow !== null && heat.originColumn !== null ? mark({ row: heat.originRow, column: heat.originColumn }, 'origin') : null}
          {brush ? (
            <div class="brush" style={{ left: `${Math.min(brush.from.x, brush.to.x)}px`, top: `${Math.min(brush.from.y, brush.to.y)}px`, width: `${Math.abs(brush.to.x - brush.from.x)}px`, height: `${Math.abs(brush.to.y - brush.from.y)}px` }} />
          ) : null}
        </div>
        <div class="heat-corner">step</div>
        <div class="heat-steps" aria-hidden="true">
          {ticks(window, width).map((column) => (
            <span key={column} style={{ left: `${x(column + 0.5)}px` }}>
              {heat.first[column]}
            </span>
          ))}
        </div>
      </div>
      {tip && at && !brush && !moved ? (
        <div class="heat-tip" aria-hidden="true" style={{ top: `${tip.y + 16}px`, ...(tip.x > width / 2 ? { right: `${width - tip.x + 10}px` } : { left: `${gutter + tip.x + 14}px` }) }}>
          <b>{rowText(heat, at.row)}</b>
          <span>
            {stepsText(heat, at.column)}: {levelText ? levelText(at) : describe(levelAt(heat, at.row, at.column))}
          </span>
        </div>
      ) : null}
      <p class="heat-at" role="status">
        {cellText(heat, cursor, levelText)}
      </p>
    </div>
  );
}

/** The one scale of the page. */
export function Legend() {
  const colours = coloursOf(useTheme());
  const gradient = (from: number, to: number) => `linear-gradient(to right, ${Array.from({ length: 9 }, (_, i) => css(colours[Math.round(from + ((to - from) * i) / 8)]!)).join(', ')})`;
  const key = (level: number, text: string) => (
    <span class="legend-key">
      <i style={{ background: css(colours[level]!) }} />
      {text}
    </span>
  );
  return (
    <div class="legend" role="img" aria-label="Scale: identical, within tolerance from light to middle blue, diverged from orange to the darkest or brightest end, grey in one run only.">
      {key(IDENTICAL, 'identical')}
      <span class="legend-scale">
        <i style={{ background: gradient(WITHIN_MAX - 80, WITHIN_MAX) }} />
        <i style={{ background: gradient(DIVERGED_MIN, DIVERGED_MIN + 80) }} />
        <b>within</b>
        <b>tolerance</b>
        <b>diverged</b>
      </span>
      {key(MISSING, 'in one run only')}
      {key(NO_DATA, 'no data')}
      <span class="legend-key">
        <i class="origin-key" />
        origin
      </span>
    </div>
  );
}
