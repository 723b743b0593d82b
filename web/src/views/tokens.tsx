// Token by token: where the same tokens part in a trainer and an engine. One sequence as a heat map of taps over positions.
import { useMemo, useRef } from 'preact/hooks';
import { numberOf, urlOf } from '../api/client';
import type { Parameters, Tokens } from '../api/types';
import { useQuery } from '../api/use_query';
import { entryOf, folded, rowBehind, windowBehind, windowDrawn } from '../heat/fold';
import { gutterOf, HeatMapView, heightOf, Legend } from '../heat/heat_map';
import { describe, stateOf } from '../heat/levels';
import { columnOf, levelAt, parseWindow, summaries, windowText, type Heat } from '../heat/model';
import { Chart } from '../parts/chart';
import { Comparable } from '../parts/comparable';
import { Choice, Commands, Empty, Link, waiting } from '../parts/parts';
import { differenceOf } from '../parts/lines';
import { RunHead } from '../parts/run_head';
import { useWidth } from '../parts/theme';
import { go, type Route } from '../route';
import { command, count, short, shown } from '../text';
import { FoldAll } from './picture';
import { argumentsOf, questionOf } from './question';
import { choicesOf, heatOfTokens, valuesOf } from './tokens_model';
import { SIGNS, TONES } from './verdict';

type Asked = Parameters<'/api/v1/tokens'>;

/** Of the options of a diff those that say something about tokens. */
function asked(route: Route): Asked {
  const { run_a, run_b, map, steps, noise, exact } = questionOf(route);
  return { run_a, run_b, ...(map && { map }), ...(steps && { steps }), ...(noise && { noise }), ...(exact && { exact }) };
}

function Answer({ found }: { found: Tokens }) {
  const { text } = found;
  if (!text) return null;
  const tone = TONES[text.verdict] ?? 'warn';
  return (
    <section class={`verdict ${tone}`} aria-label="Verdict">
      <p class="badge">
        <span aria-hidden="true">{SIGNS[tone]} </span>
        {text.verdict.toLowerCase()}
      </p>
      <Comparable checks={found.comparable} />
      <h2 class="sentence">{shown(text.sentence, 4000)}</h2>
      {found.verdict === 'incomparable' ? null : <p class="counts">{found.exact ? 'Every differing bit counts' : found.noise.length > 0 ? `Rounding was measured by ${found.noise.map((run) => shown(run, 80)).join(', ')}` : 'Rounding was not measured, but estimated from dtype and growth'}</p>}
    </section>
  );
}

/** All taps with their numbers: over all tokens, and in the sequence that is shown. */
function Taps({ found, heat, onChoose }: { found: Tokens; heat: Heat; onChoose: (row: number, column: number) => void }) {
  const rows = useMemo(() => summaries(heat), [heat]);
  return (
    <details class="behind">
      <summary>The same as a table</summary>
      <div class="scroll tall" tabIndex={0} role="region" aria-label="Taps as a table">
        <table class="rows">
          <thead>
            <tr>
              <th scope="col">Tap</th>
              <th scope="col">In this sequence</th>
              <th scope="col">First</th>
              <th scope="col" class="number">
                All tokens
              </th>
              <th scope="col" class="number">
                Equal
              </th>
              <th scope="col" class="number">
                Beyond
              </th>
              <th scope="col" class="number">
                Distance
              </th>
              <th scope="col" class="number">
                Limit
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ index, worst, diverged, first }) => {
              const tap = found.taps[index];
              if (!tap) return null;
              return (
                <tr key={index}>
                  <th scope="row">
                    <button type="button" class="sort" onClick={() => onChoose(index, first ?? 0)}>
                      <bdi class="name">{shown(tap.tap, 120)}</bdi>
                    </button>
                  </th>
                  <td>{diverged > 0 ? `${count(diverged)} of ${count(heat.columns)} diverged` : stateOf(worst)}</td>
                  <td>{first === null ? '' : `position ${heat.first[first]}`}</td>
                  <td class="number">{count(tap.rows)}</td>
                  <td class="number">{count(tap.equal)}</td>
                  <td class="number">{count(tap.diverged)}</td>
                  <td class="number">{short(numberOf(tap.distance))}</td>
                  <td class="number">{found.exact ? '' : short(numberOf(tap.limit))}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </details>
  );
}

/** "token 1234" at a column; the ids follow from the keys. */
function idText(found: Tokens, column: number): string {
  const id = found.sequence?.ids[column] ?? -1;
  return id < 0 ? '' : `, token id ${id}`;
}

/** What a tap of one column is called above the map. */
const nameOf = (tap: string) => (tap === 'logprob' ? 'Log-probability of the next token' : shown(tap, 80));

function Picture({ route, found, heat }: { route: Route; found: Tokens; heat: Heat }) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const gutter = gutterOf(width);
  const fold = useMemo(() => folded(heat, route.open), [heat, route.open]);
  const values = useMemo(() => valuesOf(found), [found]);
  const window = useMemo(() => parseWindow(heat, route.window), [heat, route.window]);
  const chosenRow = heat.rows.findIndex((row) => row.activation === route.tensor);
  const chosen = chosenRow >= 0 && route.step !== '' ? { row: chosenRow, column: columnOf(heat, Number(route.step)) } : null;
  const choose = (row: number, column: number) => go({ ...route, tensor: heat.rows[row]?.activation ?? '', step: String(heat.first[column] ?? 0) }, true);
  const levelText = (row: number, column: number) => describe(levelAt(heat, row, column)) + idText(found, column);
  const origin = heat.originRow !== null && heat.originColumn !== null ? { row: heat.originRow, column: heat.originColumn } : null;
  const mark = origin ? { x: origin.column + 0.5, text: `position ${heat.first[origin.column]}, where they part` } : null;
  const positionText = (x: number) => (heat.first[Math.floor(x)] === undefined ? '' : `position ${heat.first[Math.floor(x)]}`);
  const chart = { gutter, range: [window.column, window.column + window.columns] as const, stepText: positionText, axis: false, mark };
  const difference = useMemo(() => (values[0] ? differenceOf(...values[0].lines, false) : null), [values]);
  return (
    <div class="picture" ref={box}>
      {values.map(({ tap, lines }) => (
        <Chart key={tap} label={nameOf(tap)} lines={lines} height={width < 600 ? 100 : 110} {...chart} />
      ))}
      {difference && difference.points.some(([, y]) => y !== null) ? <Chart label="|A − B|" lines={[difference]} height={width < 600 ? 76 : 80} log {...chart} /> : null}
      <HeatMapView
        heat={fold.heat}
        window={windowDrawn(fold, window)}
        chosen={chosen && { ...chosen, row: entryOf(fold.entries, chosen.row) }}
        onChoose={(cell) => choose(rowBehind(heat, fold, cell.row, cell.column), cell.column)}
        onWindow={(next) => go({ ...route, window: windowText(heat, windowBehind(fold, next)) }, true)}
        gutter={gutter}
        height={heightOf(fold.heat, width < 600)}
        levelText={({ row, column }) => levelText(rowBehind(heat, fold, row, column), column)}
        line={mark?.x ?? -1}
        fold={fold}
        onFold={(open) => go({ ...route, open }, true)}
      />
      <div class="bar under">
        <Legend />
        <span class="grow" />
        <FoldAll fold={fold} onOpen={(open) => go({ ...route, open }, true)} />
        {origin ? (
          <button type="button" class="main" onClick={() => choose(origin.row, origin.column)}>
            Show where they part
          </button>
        ) : null}
      </div>
      <p class="note">
        {count(heat.rows.length)} taps in the order of execution, {count(heat.columns)} tokens. The tolerance is what rounding explains at each tap. Drag to zoom, Shift and drag to move, click a cell to mark it.
      </p>
      {chosen ? (
        <section class="cell" aria-label="The chosen cell">
          <h2>
            <bdi class="name">{shown(route.tensor, 200)}</bdi>
          </h2>
          <p class="lead">
            Position {heat.first[chosen.column]}
            {idText(found, chosen.column)}: {describe(levelAt(heat, chosen.row, chosen.column))}
          </p>
          {values.map(({ tap, lines }) => (
            <p key={tap} class="note">
              {nameOf(tap)}: {lines.map(({ label, points }) => `${short(points[chosen.column]?.[1] ?? null, 5)} in ${label}`).join(', ')}
            </p>
          ))}
        </section>
      ) : null}
      <Taps found={found} heat={heat} onChoose={choose} />
    </div>
  );
}

export function TokensView({ route }: { route: Route }) {
  const there = route.a !== '' && route.b !== '';
  const question = asked(route);
  const query = useQuery('/api/v1/tokens', there ? { ...question, cells: true, ...(route.sequence && { sequence: route.sequence }) } : null);
  const found = query.data;
  const heat = useMemo(() => (found ? heatOfTokens(found) : null), [found]);
  if (!there) {
    return (
      <Empty title="Pick two runs">
        <p>
          Pick them in the <Link to={{ view: 'runs' }}>list of runs</Link>.
        </p>
      </Empty>
    );
  }
  const named = { ...route, tolerance: '', rank: '', ranks: '', kinds: '', no_alignment: '', first_only: '', no_noise: '', merge_ranks: '', logical: '', by_rank: '' };
  return (
    <>
      <RunHead route={route} />
      {waiting(query, 'Comparing the tokens')}
      {found ? <Answer found={found} /> : null}
      {found && found.sequences.length > 0 ? (
        <div class="bar">
          <Choice label="Sequence" value={found.sequence?.of?.key ?? ''} options={choicesOf(found)} onChange={(sequence) => go({ ...route, sequence, window: '', step: '' })} />
          {found.sequences_total > found.sequences.length ? (
            <span class="soft">
              the {found.sequences.length} of {count(found.sequences_total)} that part most
            </span>
          ) : null}
          <span class="grow" />
          {route.window ? (
            <button type="button" class="quiet" onClick={() => go({ ...route, window: '' })}>
              Show all
            </button>
          ) : null}
        </div>
      ) : null}
      {found && heat ? <Picture route={route} found={found} heat={heat} /> : null}
      {found?.notes.map((note) => (
        <p class="note" key={note}>
          {shown(note, 2000)}
        </p>
      ))}
      <Commands asked={[{ statctl: command('statctl', 'diff', ...argumentsOf(named), '--tokens'), url: urlOf('/api/v1/tokens', question) }]} />
    </>
  );
}
