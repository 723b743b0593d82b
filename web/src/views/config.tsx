// The checklist of settings: what differs between two runs, likely culprits first; or all of one run.
import { useState } from 'preact/hooks';
import { urlOf } from '../api/client';
import type { ConfigItem } from '../api/types';
import { useQuery } from '../api/use_query';
import { Commands, Empty, Link, Name, waiting } from '../parts/parts';
import { RunHead } from '../parts/run_head';
import { go, type Route } from '../route';
import { command, count, shown, words } from '../text';

const VALUE_MAX = 300;
const OPEN_MAX = 12; // settings of an area that is not folded at first

/** The settings of one area, which a click folds. `open`: unless somebody has clicked. */
function Group({ route, category, items, open }: { route: Route; category: string; items: readonly ConfigItem[]; open: boolean }) {
  const [clicked, setClicked] = useState<boolean | null>(null);
  const shows = clicked ?? open;
  const value = (text: string | null) => (text === null ? <span class="soft">not set</span> : <bdi>{shown(text, VALUE_MAX)}</bdi>);
  return (
    <tbody>
      <tr class="group">
        <th scope="rowgroup" colSpan={route.b ? 3 : 2}>
          <button type="button" class="sort" aria-expanded={shows} onClick={() => setClicked(!shows)}>
            <span aria-hidden="true">{shows ? '▾' : '▸'} </span>
            {words(category)} <span class="soft">{count(items.length)}</span>
          </button>
        </th>
      </tr>
      {(shows ? items : []).map((item) => (
        <tr key={item.key}>
          <th scope="row" class="long">
            <bdi class="name">{shown(item.key, VALUE_MAX)}</bdi>
          </th>
          <td class="side" data-label={route.b ? shown(route.a, 20) : undefined}>
            {value(item.a)}
          </td>
          {route.b ? (
            <td class="side" data-label={shown(route.b, 20)}>
              {value(item.b)}
            </td>
          ) : null}
        </tr>
      ))}
    </tbody>
  );
}

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
  const wanted = route.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = (report?.items ?? []).filter((item) => wanted.every((word) => `${item.category} ${item.key} ${item.a ?? ''} ${item.b ?? ''}`.toLowerCase().includes(word)));
  const groups = new Map<string, ConfigItem[]>();
  for (const item of kept) groups.set(item.category ?? '', [...(groups.get(item.category ?? '') ?? []), item]);
  return (
    <>
      <RunHead route={route} />
      {route.b && report ? (
        <p class="lead">{report.differ === 0 ? 'No settings differ' : `${count(report.differ)} of ${count(report.compared)} settings differ, likely culprits first`}.</p>
      ) : null}
      {waiting(query, 'Reading the configuration')}
      {report && report.items.length > 0 ? (
        <>
          <div class="bar">
            <label class="choice grow">
              <span>Filter</span>
              <input type="search" value={route.filter} placeholder="name or value" onInput={(event) => go({ ...route, filter: event.currentTarget.value }, true)} />
            </label>
          </div>
          <div class="scroll" tabIndex={0} role="region" aria-label="Settings">
            <table class="rows wrap stack">
              <thead>
                <tr>
                  <th scope="col">Setting</th>
                  <th scope="col">{route.b ? <Name name={route.a} longest={40} /> : 'Value'}</th>
                  {route.b ? (
                    <th scope="col">
                      <Name name={route.b} longest={40} />
                    </th>
                  ) : null}
                </tr>
              </thead>
              {[...groups].map(([category, items]) => (
                <Group key={category} route={route} category={category} items={items} open={items.length <= OPEN_MAX || wanted.length > 0} />
              ))}
            </table>
          </div>
          {kept.length === 0 ? <p class="note">No setting matches the filter.</p> : null}
        </>
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
