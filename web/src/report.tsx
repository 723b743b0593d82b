// The report file: the comparison of two runs with its data in it, to look at without a collector.
import { render } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import type { DiffReport, HeatMap, ScalarPoint } from './api/types';
import { rowText } from './heat/row_names';
import { describe } from './heat/levels';
import { heatOf, levelAt, stepsText, whole, type Heat } from './heat/model';
import type { Window } from './heat/paint';
import { copying, Menu } from './parts/parts';
import { RunPair } from './parts/run_pair';
import './style.css';
import { command, shown } from './text';
import { lossLine } from './views/losses';
import { HeatPicture, type CellPlace } from './views/picture';
import { foundIn } from './views/places';
import { placeText, StatsTable } from './views/stats';
import { Remarks, Verdict } from './views/verdict';

interface Data {
  report: DiffReport;
  scalars_a: ScalarPoint[];
  scalars_b: ScalarPoint[];
  command: string[];
  made_unix_nanos: number;
}

function Chosen({ report, heat, cell }: { report: DiffReport; heat: Heat; cell: CellPlace }) {
  const sides = foundIn(report, heat.rows[cell.row], heat.first[cell.column] ?? 0, heat.last[cell.column] ?? 0);
  return (
    <section class="cell" aria-label="The chosen cell">
      <h2>
        <bdi class="name">{rowText(heat, cell.row)}</bdi>
      </h2>
      <p class="lead">
        {stepsText(heat, cell.column)}: {describe(levelAt(heat, cell.row, cell.column))}
      </p>
      {sides ? (
        <>
          <p class="note">
            Step {sides.step}, {placeText({ ...sides, ranks: sides.ranks_a })}
          </p>
          <StatsTable a={sides.a} b={sides.b} runA={report.run_a} runB={report.run_b} />
        </>
      ) : (
        <p class="note">This file has statistics of the first differences only. The collector has all of them.</p>
      )}
    </section>
  );
}

function Map({ data, map }: { data: Data; map: HeatMap }) {
  const heat = useMemo(() => heatOf(map), [map]);
  const [window, setWindow] = useState<Window>(() => whole(heat));
  const [chosen, setChosen] = useState<CellPlace | null>(null);
  const [open, setOpen] = useState('');
  const lines = useMemo(() => [lossLine(data.scalars_a, 'a', shown(data.report.run_a, 40), heat, ''), lossLine(data.scalars_b, 'b', shown(data.report.run_b, 40), heat, '')], [heat]);
  return (
    <HeatPicture report={data.report} heat={heat} lines={lines} reading={false} window={window} chosen={chosen} onChoose={setChosen} onWindow={setWindow} open={open} onOpen={setOpen}>
      {chosen ? <Chosen report={data.report} heat={heat} cell={chosen} /> : null}
    </HeatPicture>
  );
}

function Report({ data }: { data: Data }) {
  const { report } = data;
  const asked = command(...data.command);
  return (
    <main class="report">
      <header class="pair">
        <span class="brand">statcollect</span>
        <h1>
          <RunPair a={report.run_a} b={report.run_b} />
        </h1>
        <span class="grow" />
        <span class="soft">{new Date(data.made_unix_nanos / 1e6).toISOString().slice(0, 16).replace('T', ' ')} UTC</span>
      </header>
      <Verdict report={report} />
      {report.heat_map && report.heat_map.rows.length > 0 ? <Map data={data} map={report.heat_map} /> : null}
      <Remarks report={report} />
      <div class="commands">
        <code tabIndex={0} aria-label="The same in a terminal">
          {asked}
        </code>
        <Menu label="Copy" items={[copying('statctl command', asked)]} />
      </div>
    </main>
  );
}

const place = document.getElementById('app');
const text = document.getElementById('data')?.textContent;
if (place && text) {
  const data = JSON.parse(text) as Data;
  document.title = `${shown(data.report.run_a, 40)} / ${shown(data.report.run_b, 40)} – statcollect`;
  render(<Report data={data} />, place);
}
