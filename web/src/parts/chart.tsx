// Lines over steps, drawn by uPlot.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { short } from '../text';
import { joined, logTicks, tickTexts, type Line } from './lines';
import { LINES, useTheme, useWidth } from './theme';

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

export function Chart({ label, lines, height, gutter, range, span, stepText, log = false, axis = true, mark = null }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const theme = useTheme();
  const [at, setAt] = useState<number | null>(null);
  const data = useMemo(() => joined(lines), [lines]);
  const plot = useRef<uPlot | null>(null);
  useEffect(() => {
    if (!box.current || width < 60) return;
    const colours = LINES[theme];
    const font = '12px system-ui, sans-serif';
    const began = performance.now();
    let drawn = false;
    const options: uPlot.Options = {
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
      hooks: {
        setCursor: [(u) => setAt(u.cursor.idx ?? null)],
        draw: [
          (u) => {
            if (mark) {
              const x = u.valToPos(mark.x, 'x', true);
              const { left, top, width: across, height: down } = u.bbox;
              if (x >= left && x <= left + across) {
                u.ctx.save();
                u.ctx.strokeStyle = colours.d;
                u.ctx.lineWidth = uPlot.pxRatio;
                u.ctx.setLineDash([3 * uPlot.pxRatio, 3 * uPlot.pxRatio]);
                u.ctx.beginPath();
                u.ctx.moveTo(x, top);
                u.ctx.lineTo(x, top + down);
                u.ctx.stroke();
                u.ctx.restore();
              }
            }
            if (!drawn) performance.measure('chart', { start: began }); // bench/page.py reads it
            drawn = true;
          },
        ],
      },
    };
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
