// Lines over steps, drawn by uPlot.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { short } from '../text';
import { joined, logTicks, tickTexts, type Line } from './lines';
import { LINES, useTheme, useWidth, type Theme } from './theme';

// Right of the plot: half of the last step's number.
const EDGE = 20;

interface Props {
  label: string;
  lines: readonly Line[];
  height: number;
  gutter: number; // pixels left of the plot
  range?: readonly [number, number];
  span?: readonly [number, number]; // of the values; else what they need
  stepText: (x: number) => string;
  log?: boolean;
  axis?: boolean; // the steps below; without it, what is below has them
  mark?: { x: number; text: string } | null; // a line from top to bottom: where the runs begin to differ
}

type Axes = Pick<Props, 'lines' | 'height' | 'gutter' | 'stepText'> & { range: Props['range']; span: Props['span']; log: boolean; axis: boolean };

/** `setAt` learns which step the cursor is at, `draw` when everything is drawn. */
function optionsOf({ lines, height, gutter, range, span, stepText, log, axis }: Axes, theme: Theme, width: number, setAt: (at: number | null) => void, draw: (u: uPlot) => void): uPlot.Options {
  const colours = LINES[theme];
  const font = '12px system-ui, sans-serif';
  return {
    width,
    height,
    padding: [10, axis ? EDGE : 0, axis ? 0 : 6, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false, setScale: false }, points: { size: 6 } },
    scales: { x: { time: false, ...(range ? { range: [range[0], range[1]] as [number, number] } : {}) }, y: { distr: log ? 3 : 1, ...(span ? { range: [span[0], span[1]] as [number, number] } : {}) } },
    axes: [
      { show: axis, stroke: colours.axis, font, grid: { show: false }, ticks: { stroke: colours.grid, size: 4 }, values: (_, at) => at.map((x) => stepText(x)), space: 70, size: 30 },
      { size: gutter, stroke: colours.axis, font, grid: { stroke: colours.grid, width: 1 }, ticks: { show: false }, values: (_, at) => tickTexts(at), space: 26, ...(log ? { splits: (_: uPlot, __: number, low: number, high: number) => logTicks(low, high), filter: (_: uPlot, ticks: number[]) => ticks } : {}) },
    ],
    series: [
      {},
      ...lines.map((line): uPlot.Series => ({ label: line.label, stroke: colours[line.run], width: 1.75, spanGaps: line.run !== 'd', points: { show: line.points.length < 3 }, ...(line.run === 'b' ? { dash: [6, 3] } : {}) })),
    ],
    hooks: { setCursor: [(u) => setAt(u.cursor.idx ?? null)], draw: [draw] },
  };
}

/** A dashed line from top to bottom, if it is in sight. */
function drawMark(u: uPlot, at: number, colour: string): void {
  const x = u.valToPos(at, 'x', true);
  const { left, top, width, height } = u.bbox;
  if (x < left || x > left + width) return;
  u.ctx.save();
  u.ctx.strokeStyle = colour;
  u.ctx.lineWidth = uPlot.pxRatio;
  u.ctx.setLineDash([3 * uPlot.pxRatio, 3 * uPlot.pxRatio]);
  u.ctx.beginPath();
  u.ctx.moveTo(x, top);
  u.ctx.lineTo(x, top + height);
  u.ctx.stroke();
  u.ctx.restore();
}

export function Chart({ label, lines, height, gutter, range, span, stepText, log = false, axis = true, mark = null }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const theme = useTheme();
  const [at, setAt] = useState<number | null>(null);
  const data = useMemo(() => joined(lines), [lines]);
  const plot = useRef<uPlot | null>(null);
  useEffect(() => {
    if (!box.current || width < 60) return;
    const began = performance.now();
    let drawn = false;
    const draw = (u: uPlot) => {
      if (mark) drawMark(u, mark.x, LINES[theme].d);
      if (!drawn) performance.measure('chart', { start: began }); // bench/page.py reads it
      drawn = true;
    };
    const options = optionsOf({ lines, height, gutter, range, span, stepText, log, axis }, theme, width, setAt, draw);
    plot.current = new uPlot(options, data, box.current);
    return () => {
      plot.current?.destroy();
      plot.current = null;
    };
  }, [width, height, theme, log, gutter, axis, range?.[0], range?.[1], span?.[0], span?.[1], data, mark?.x]);
  const x = at === null ? undefined : data[0][at];
  const drawable = lines.some((line) => line.points.some(([, y]) => y !== null && Number.isFinite(y)));
  return (
    <figure class="chart" aria-label={label}>
      <figcaption>
        <span>{label}</span>
        {lines.map((line, i) => {
          const value = at === null ? undefined : data[i + 1]?.[at];
          return (
            <span key={line.run} class={line.label === '' ? 'value' : `key ${line.run}`}>
              {line.label}
              {value !== undefined && value !== null ? <b> {short(value, 5)}</b> : null}
            </span>
          );
        })}
        {mark ? <span class="key origin">{mark.text}</span> : null}
        {x === undefined ? null : <span class="soft">{stepText(x)}</span>}
      </figcaption>
      <div ref={box} style={{ height: `${height}px` }} />
      {drawable ? null : <p class="chart-empty">No finite value in any step.</p>}
      {axis && drawable ? (
        <span class="chart-corner" style={{ width: `${gutter - 8}px` }} aria-hidden="true">
          step
        </span>
      ) : null}
    </figure>
  );
}
