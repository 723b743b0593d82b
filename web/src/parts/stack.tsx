// Layers on top of one another over steps, drawn by uPlot.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { bytes } from '../text';
import { byteTicks } from './lines';
import { LAYERS, LINES, useTheme, useWidth } from './theme';

interface Props {
  label: string;
  xs: readonly number[];
  layers: readonly { key: string; label: string; values: readonly number[] }[]; // in bytes, from the bottom
  height: number;
  gutter: number; // pixels left of the plot
  atText: (index: number) => string;
}

export function StackChart({ label, xs, layers, height, gutter, atText }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const theme = useTheme();
  const [at, setAt] = useState<number | null>(null);
  useEffect(() => setAt(null), [xs]);
  const data = useMemo(() => {
    const sums: number[][] = [];
    layers.forEach((layer, i) => sums.push(layer.values.map((value, x) => value + (sums[i - 1]?.[x] ?? 0))));
    return [[...xs], ...sums] as uPlot.AlignedData;
  }, [xs, layers]);
  useEffect(() => {
    if (!box.current || width < 60) return;
    const colours = LINES[theme];
    const fills = LAYERS[theme];
    const font = '12px system-ui, sans-serif';
    const plot = new uPlot(
      {
        width,
        height,
        padding: [10, 20, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false, setScale: false }, points: { show: false } },
        scales: { x: { time: false }, y: { range: (_, __, most) => [0, most > 0 ? most * 1.05 : 1] } },
        axes: [
          { stroke: colours.axis, font, grid: { show: false }, ticks: { stroke: colours.grid, size: 4 }, values: (_, ticks) => ticks.map((x) => (Number.isInteger(x) ? String(x) : '')), space: 70, size: 30 },
          { size: gutter, stroke: colours.axis, font, grid: { stroke: colours.grid, width: 1 }, ticks: { show: false }, splits: (_, __, low, high) => byteTicks(low, high), values: (_, ticks) => ticks.map((y) => bytes(y)), space: 26 },
        ],
        series: [
          {},
          ...layers.map((_, i): uPlot.Series => ({ stroke: colours.axis, width: 0.75, points: { show: xs.length < 2 }, ...(i === 0 ? { fill: fills[0] } : {}) })),
        ],
        bands: layers.slice(1).map((_, i) => ({ series: [i + 2, i + 1] as [number, number], fill: fills[(i + 1) % fills.length]! })),
        hooks: { setCursor: [(u) => setAt(u.cursor.idx ?? null)] },
      },
      data,
      box.current,
    );
    return () => plot.destroy();
  }, [width, height, theme, gutter, data]);
  const seen = at ?? xs.length - 1;
  return (
    <figure class="chart" aria-label={label}>
      <div ref={box} style={{ height: `${height}px` }} />
      <figcaption class="layers">
        <span class="soft">{seen >= 0 ? atText(seen) : ''}</span>
        {layers
          .map((layer, i) => (
            <span key={layer.key} class="layer">
              <i style={{ background: LAYERS[theme][i % LAYERS[theme].length] }} />
              {layer.label} <b>{bytes(layer.values[seen] ?? 0)}</b>
            </span>
          ))
          .reverse()}
      </figcaption>
    </figure>
  );
}
