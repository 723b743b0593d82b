// The heat map: step x tensor in the order of execution. Drag to zoom, click or Enter to choose a cell.
import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { useTheme, useWidth, type Theme } from '../parts/theme';
import { coloursOf, css, describe, paletteOf, type Rgb, IDENTICAL, MISSING, NO_DATA, DIVERGED_MIN, WITHIN_MAX } from './levels';
import type { Fold } from './fold';
import { isInside, xOf, yOf, type Cell, type Frame, type Point } from './frame';
import { useGestures, type Brush } from './gestures';
import { axesOf, levelAt, stepsText, type Heat } from './model';
import type { Window } from './paint';
import { makePainter, type Painter } from './painter';
import type { Order, PaintOrder } from './pictures';
import { bands, RowNames, rowText } from './row_names';

interface Props {
  heat: Heat;
  window: Window;
  onWindow: (window: Window) => void;
  chosen: Cell | null;
  onChoose: (cell: Cell) => void;
  gutter: number;
  height: number;
  colours?: (theme: Theme) => readonly Rgb[]; // of the 256 levels; without it those of distances
  levelText?: ((cell: Cell) => string) | undefined;
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

function cellText(heat: Heat, { row, column }: Cell, levelText?: (cell: Cell) => string): string {
  const origin = row === heat.originRow && column === heat.originColumn ? ' – the origin' : '';
  return `${stepsText(heat, column)}, ${rowText(heat, row)}: ${levelText ? levelText({ row, column }) : describe(levelAt(heat, row, column))}${origin}`;
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

/** How high a map is drawn: so that names fit beside its rows, within reason. */
export const heightOf = (heat: Heat, narrow: boolean) => (heat.tiles ? (narrow ? 360 : 460) : Math.min(narrow ? 480 : 660, Math.max(narrow ? 240 : 280, heat.rows.length * 15)));
export const gutterOf = (width: number) => (width > 0 && width < 600 ? 96 : 220);

/** What lies over the picture: lines between the stages, the marked cells, and the rectangle that is being drawn. */
function Overlay({ heat, frame, chosen, at, marks, line, brush }: { heat: Heat; frame: Frame; chosen: Cell | null; at: Cell | null; marks: readonly Cell[]; line: number; brush: Brush | null }) {
  const { window, width, height } = frame;
  const mark = (cell: Cell, kind: string) => {
    if (!isInside(frame, cell)) return null;
    const w = Math.max(width / window.columns, 3);
    const h = Math.max(height / window.rows, 3);
    return <div class={`mark ${kind}`} style={{ left: `${xOf(frame, cell.column)}px`, top: `${yOf(frame, cell.row)}px`, width: `${w}px`, height: `${h}px` }} />;
  };
  const origin = heat.originRow !== null && heat.originColumn !== null ? { row: heat.originRow, column: heat.originColumn } : null;
  return (
    <>
      {bands(heat, window).slice(1).map((band) => (
        <div key={band.row} class="heat-line" style={{ top: `${yOf(frame, band.row)}px` }} />
      ))}
      {line > window.column && line < window.column + window.columns ? <div class="heat-origin" style={{ left: `${xOf(frame, line)}px` }} /> : null}
      {marks.map((cell) => mark(cell, 'alarm'))}
      {chosen ? mark(chosen, 'chosen') : null}
      {at ? mark(at, 'at') : null}
      {origin && heat.originSpan && isInside(frame, { row: origin.row, column: window.column }) ? (
        <div class="mark span" style={{ left: 0, top: `${yOf(frame, origin.row)}px`, width: `${width}px`, height: `${Math.max(height / window.rows, 3)}px` }} />
      ) : null}
      {origin ? mark(origin, 'origin') : null}
      {brush ? (
        <div class="brush" style={{ left: `${Math.min(brush.from.x, brush.to.x)}px`, top: `${Math.min(brush.from.y, brush.to.y)}px`, width: `${Math.abs(brush.to.x - brush.from.x)}px`, height: `${Math.abs(brush.to.y - brush.from.y)}px` }} />
      ) : null}
    </>
  );
}

/** Beside the pointer: which cell it is over. */
function Tip({ heat, at, tip, width, gutter, levelText }: { heat: Heat; at: Cell; tip: Point; width: number; gutter: number; levelText: Props['levelText'] }) {
  return (
    <div class="heat-tip" aria-hidden="true" style={{ top: `${tip.y + 16}px`, ...(tip.x > width / 2 ? { right: `${width - tip.x + 10}px` } : { left: `${gutter + tip.x + 14}px` }) }}>
      <b>{rowText(heat, at.row)}</b>
      <span>
        {stepsText(heat, at.column)}: {levelText ? levelText(at) : describe(levelAt(heat, at.row, at.column))}
      </span>
    </div>
  );
}

export function HeatMapView({ heat, window: settled, onWindow, chosen, onChoose, gutter, height, colours = coloursOf, levelText, marks = [], line = -1, fold, onFold }: Props) {
  const theme = useTheme();
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(box);
  const palette = useMemo(() => paletteOf(colours(theme)), [theme, colours]);
  const { draw, tiles } = usePainter(heat, canvas);
  const { frame, at, cursor, brush, moving, tip, handlers } = useGestures({ heat, settled, size: { width, height }, box, chosen, onWindow, onChoose });
  const { window } = frame;
  useLayoutEffect(() => {
    if (width === 0 || window.rows === 0) return;
    const scale = Math.min(2, globalThis.devicePixelRatio || 1);
    draw(window, Math.round(width * scale), Math.round(height * scale), palette);
  }, [heat, tiles, width, height, palette, window.row, window.rows, window.column, window.columns]);
  return (
    <div class="heat">
      <div class="heat-body" style={{ gridTemplateColumns: `${gutter}px 1fr` }}>
        <RowNames heat={heat} window={window} gutter={gutter} height={height} fold={fold} onFold={onFold} />
        <div
          ref={box}
          class={moving ? 'heat-canvas moving' : 'heat-canvas'}
          style={{ height: `${height}px` }}
          tabIndex={0}
          role="application"
          aria-roledescription="heat map"
          aria-label={`Heat map of ${heat.rows.length} ${axesOf(heat).rows} over ${heat.columns} ${axesOf(heat).columns}. Arrows move, Enter shows a cell, plus and minus zoom, Home goes to the origin.`}
          {...handlers}
        >
          <canvas ref={canvas} />
          <Overlay heat={heat} frame={frame} chosen={chosen} at={at} marks={marks} line={line} brush={brush} />
        </div>
        <div class="heat-corner">{axesOf(heat).column}</div>
        <div class="heat-steps" aria-hidden="true">
          {ticks(window, width).map((column) => (
            <span key={column} style={{ left: `${xOf(frame, column + 0.5)}px` }}>
              {heat.first[column]}
            </span>
          ))}
        </div>
      </div>
      {tip && at ? <Tip heat={heat} at={at} tip={tip} width={width} gutter={gutter} levelText={levelText} /> : null}
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
