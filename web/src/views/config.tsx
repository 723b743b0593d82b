// The checklist of settings: what differs between two runs, likely culprits first; or all of one run.
import { urlOf } from '../api/client';
import { useQuery } from '../api/use_query';
import { Commands, Empty, Link, waiting } from '../parts/parts';
import { RunPair } from '../parts/run_pair';
import type { Route } from '../route';
import { command, count, shown } from '../text';

const VALUE_MAX = 300;

export function ConfigView({ route }: { route: Route }) {
  const request = { run_a: route.a, ...(route.b ? { run_b: route.b } : {}) };
  const query = useQuery('/api/v1/config', route.a ? request : null);
  if (!route.a) {
    return (
      <Empty title="Pick a run">
        <p>
          Pick one or two in the <Link to={{ view: 'runs' }}>list of runs</Link>.
        </p>
      </Empty>
    );
  }
  const report = query.data;
  const value = (text: string | null) => (text === null ? <span class="soft">not set</span> : <bdi>{shown(text, VALUE_MAX)}</bdi>);
  return (
    <>
      <header class="view-head">
        <h1>Configuration</h1>
        <p class="lead">
          <RunPair a={route.a} b={route.b} longest={40} />
          {route.b && report ? `: ${report.differ === 0 ? 'no settings differ' : `${count(report.differ)} of ${count(report.compared)} settings differ, likely culprits first`}` : ''}
        </p>
      </header>
      {waiting(query, 'Reading the configuration')}
      {report && report.items.length > 0 ? (
        <div class="scroll" tabIndex={0} role="region" aria-label="Settings">
          <table class="rows wrap stack">
            <thead>
              <tr>
                <th scope="col" class="about">Area</th>
                <th scope="col">Setting</th>
                <th scope="col">{route.b ? 'A' : 'Value'}</th>
                {route.b ? <th scope="col">B</th> : null}
              </tr>
            </thead>
            <tbody>
              {report.items.map((item) => (
                <tr key={`${item.category} ${item.key}`}>
                  <td class="soft about">{item.category}</td>
                  <th scope="row" class="long">
                    <bdi class="name">{shown(item.key, VALUE_MAX)}</bdi>
                  </th>
                  <td class="side" data-label={route.b ? 'A' : undefined}>
                    {value(item.a)}
                  </td>
                  {route.b ? (
                    <td class="side" data-label="B">
                      {value(item.b)}
                    </td>
                  ) : null}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      {report && report.items.length === 0 ? <Empty title={route.b ? 'No settings differ' : 'Nothing recorded'}><p>{route.b ? `All ${count(report.compared)} settings of both runs are equal.` : 'The run recorded no settings.'}</p></Empty> : null}
      {report?.notes.map((note) => (
        <p class="note" key={note}>
          {shown(note, 2000)}
        </p>
      ))}
      <Commands asked={[{ statctl: command('statctl', 'config', route.a, ...(route.b ? [route.b] : [])), url: urlOf('/api/v1/config', request) }]} />
    </>
  );
}
