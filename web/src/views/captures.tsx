// The raw values of a tensor that were captured: as a histogram, and element by element against the other run.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { bytesOf, errorOf, QueryError, urlOf } from '../api/client';
import { tokenFields } from '../api/token';
import type { CaptureRow } from '../api/types';
import { useQuery } from '../api/use_query';
import { Choice, Commands } from '../parts/parts';
import { LINES, useTheme, useWidth } from '../parts/theme';
import { go, type Route } from '../route';
import { bytes as bytesText, command, count, short, shown } from '../text';
import { binsOf, differencesOf, numbersOf } from './capture_model';
import { sideOf } from './curves';
import { pairAt } from './places';
import { placeText } from './stats';

const BYTES_MAX = 16 << 20; // that the page reads by itself
const HEIGHT = 130;

interface Values {
  row: CaptureRow;
  numbers: Float64Array | null; // null: of a type that the page does not know
}

const questionOf = (row: CaptureRow) => ({ run: row.run, activation: row.activation, step: row.step, rank: row.rank, kind: row.kind, output_path: row.output_path, micro_batch: row.micro_batch, call: row.call, mode: row.mode });

async function readCapture(row: CaptureRow, stop: AbortSignal): Promise<Values> {
  const answer = await fetch(urlOf('/api/v1/capture', questionOf(row)), { headers: tokenFields(), signal: stop });
  if (!answer.ok) throw await errorOf(answer);
  const parts = (await answer.text())
    .split('\n')
    .filter(Boolean)
    .map((line) => bytesOf((JSON.parse(line) as { data: string }).data));
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return { row, numbers: numbersOf(all, row.dtype) };
}

function useCapture(row: CaptureRow | null): { values: Values | null; error: string } {
  const key = row === null ? null : JSON.stringify(questionOf(row));
  const [state, setState] = useState<{ key: string | null; values: Values | null; error: string }>({ key, values: null, error: '' });
  useEffect(() => {
    if (row === null || row.bytes > BYTES_MAX) return;
    const stop = new AbortController();
    readCapture(row, stop.signal).then(
      (values) => stop.signal.aborted || setState({ key, values, error: '' }),
      (error: unknown) => stop.signal.aborted || setState({ key, values: null, error: error instanceof QueryError ? error.message : 'The collector did not send the values.' }),
    );
    return () => stop.abort();
  }, [key]);
  return state.key === key ? state : { values: null, error: '' };
}

type Side = 'a' | 'b';
type Names = Readonly<Record<Side, string>>;

function Bars({ label, lists, of, names }: { label: string; lists: readonly Float64Array[]; of: readonly Side[]; names: Names }) {
  const box = useRef<HTMLElement>(null);
  const width = useWidth(box);
  const colours = LINES[useTheme()];
  const bins = useMemo(() => binsOf(lists, width > 0 && width < 600 ? 30 : 60), [lists, width < 600]);
  const most = Math.max(1, ...bins.counts.flat());
  const each = width / (bins.counts[0]?.length ?? 1);
  const broken = bins.notFinite.map((number, i) => (number > 0 ? `${names[of[i]!]}: ${count(number)} not finite` : '')).filter(Boolean);
  return (
    <figure class="chart" aria-label={label} ref={box}>
      <figcaption>
        <span>{label}</span>
        {lists.length > 1 ? of.map((side) => <span key={side} class={`key bars ${side}`}>{names[side]}</span>) : null}
        {broken.length > 0 ? <span class="soft">{broken.join(', ')}</span> : null}
      </figcaption>
      {width < 60 ? null : (
        <svg class="exponents" width={width} height={HEIGHT + 20} role="img" aria-label={`${label}, from ${short(bins.low)} to ${short(bins.high)}`}>
          {bins.counts.map((counts, i) =>
            counts.map((number, j) =>
              number > 0 ? <rect key={`${i}/${j}`} x={j * each + (lists.length > 1 && i > 0 ? each / 2 : 0)} width={Math.max(1, (lists.length > 1 ? each / 2 : each) - 1)} y={HEIGHT - Math.max(1, (number / most) * (HEIGHT - 4))} height={Math.max(1, (number / most) * (HEIGHT - 4))} fill={colours[of[i]!]} /> : null,
            ),
          )}
          <line x1={0} x2={width} y1={HEIGHT} y2={HEIGHT} stroke={colours.axis} />
          <text x={0} y={HEIGHT + 15} fill={colours.axis}>
            {short(bins.low, 4)}
          </text>
          <text x={width} y={HEIGHT + 15} fill={colours.axis} text-anchor="end">
            {short(bins.high, 4)}
          </text>
        </svg>
      )}
    </figure>
  );
}

function Differences({ a, b, names }: { a: Values; b: Values; names: Names }) {
  const found = useMemo(() => (a.numbers && b.numbers ? differencesOf(a.numbers, b.numbers, a.row.shape) : null), [a, b]);
  const deltas = useMemo(() => (found ? [found.deltas] : []), [found]);
  if (!found) return null;
  if (a.row.shape.join() !== b.row.shape.join()) return <p class="note">The shapes differ: {a.row.shape.join('×')} and {b.row.shape.join('×')}. The elements cannot be compared one by one.</p>;
  if (found.different === 0) return <p class="note">All {count(found.compared)} elements are equal.</p>;
  return (
    <>
      <p class="note">
        {count(found.different)} of {count(found.compared)} elements differ.
      </p>
      <Bars label={`${names.b} − ${names.a}, element by element`} lists={deltas} of={['b']} names={names} />
      <div class="scroll tall" tabIndex={0} role="region" aria-label="Elements that differ most">
        <table class="rows stats">
          <thead>
            <tr>
              <th scope="col">Element</th>
              <th scope="col" class="number">
                {names.a}
              </th>
              <th scope="col" class="number">
                {names.b}
              </th>
              <th scope="col" class="number">
                Difference
              </th>
            </tr>
          </thead>
          <tbody>
            {found.farthest.map((one) => (
              <tr key={one.index}>
                <th scope="row">{one.place}</th>
                <td class="number">{short(one.a, 7)}</td>
                <td class="number">{short(one.b, 7)}</td>
                <td class="number">{short(one.b - one.a, 4)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

export function Captures({ route }: { route: Route }) {
  const of = (side: 'a' | 'b') => ({ run: route[side], activation: sideOf(route, side).tensor, ...(route.kind ? { kinds: [route.kind as NonNullable<CaptureRow['kind']>] } : {}), ...(route.rank === '' ? {} : { ranks: [Number(route.rank)] }) });
  const a = useQuery('/api/v1/captures', of('a'));
  const b = useQuery('/api/v1/captures', route.b ? of('b') : null);
  const kept = (rows: readonly CaptureRow[] | undefined, side: 'a' | 'b') => (rows ?? []).filter((row) => row.activation === sideOf(route, side).tensor && row.complete && (route.mode === '' || row.mode === route.mode) && (route.path === '' || row.output_path === route.path));
  const rows = [kept(a.data?.records, 'a'), kept(b.data?.records, 'b')] as const;
  const steps = [...new Set(rows.flat().map((row) => row.step))].sort((p, q) => p - q);
  const step = route.step !== '' && steps.includes(Number(route.step)) ? Number(route.step) : steps.at(-1);
  const [ofA, ofB] = rows.map((side) => side.filter((row) => row.step === step)) as [CaptureRow[], CaptureRow[]];
  const [rowA, rowB] = pairAt(ofA, ofB, route.place, route.place_b);
  const first = useCapture(rowA);
  const second = useCapture(rowB);
  const lists = useMemo(() => [first.values?.numbers, second.values?.numbers].filter((one): one is Float64Array => one instanceof Float64Array), [first.values, second.values]);
  if (a.loading || b.loading) return <p class="note">Reading…</p>;
  if (step === undefined) {
    return (
      <section aria-label="Captured values">
        <p class="note">
          None. <code>{command('statctl', 'values', 'get', route.a, route.tensor, '--step', 'N')}</code> captures them in a run that is training.
        </p>
      </section>
    );
  }
  const names = { a: shown(route.a, 40), b: shown(route.b, 40) };
  const row = rowA ?? rowB!;
  const large = [rowA, rowB].some((one) => one !== null && one.bytes > BYTES_MAX);
  const error = first.error || second.error;
  const unknown = [first, second].some((one) => one.values && !one.values.numbers);
  const sides = [...(first.values?.numbers ? ['a' as const] : []), ...(second.values?.numbers ? ['b' as const] : [])];
  return (
    <section aria-label="Captured values">
      <div class="bar">
        <Choice label="Step" value={String(step)} options={steps.map((one) => [String(one), String(one)] as const)} onChange={(next) => go({ ...route, step: next }, true)} />
        <span class="grow" />
        <span class="note">
          {row.elements < row.numel ? `the first ${count(row.elements)} of ${count(row.numel)}` : count(row.numel)} elements, {row.dtype}, {bytesText(row.bytes)}, {placeText({ ...row, ranks: [] })}
        </span>
      </div>
      {error ? (
        <p class="refusal" role="alert">
          {shown(error, 1000)}
        </p>
      ) : null}
      {large ? <p class="note">Larger than {bytesText(BYTES_MAX)}. The command below reads them.</p> : null}
      {unknown ? <p class="note">The page cannot show values of type {row.dtype}. The command below can.</p> : null}
      {lists.length > 0 ? <Bars label="Values" lists={lists} of={sides} names={names} /> : null}
      {first.values && second.values ? <Differences a={first.values} b={second.values} names={names} /> : null}
      {route.b && (!rowA || !rowB) ? <p class="note">Only {rowA ? names.a : names.b} captured it at this step.</p> : null}
      <Commands asked={[{ statctl: route.b ? command('statctl', 'values', 'diff', route.a, route.b, route.tensor, '--step', String(step), ...(row.kind ? ['--kind', row.kind] : [])) : command('statctl', 'values', 'list', route.a), url: urlOf('/api/v1/capture', questionOf(row)) }]} />
    </section>
  );
}
