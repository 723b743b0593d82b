// What can be done with a verdict: copy it, and give it to others as a link, a picture, or a file that needs no collector.
import { ask, urlOf } from '../api/client';
import { tokenFields } from '../api/token';
import type { DiffReport } from '../api/types';
import { copiesOf, copying, Menu } from '../parts/parts';
import { fileName, save } from '../parts/download';
import { savePhoto } from '../parts/photo';
import type { Route } from '../route';
import { command } from '../text';
import { isLoss } from './losses';
import { argumentsOf, questionOf } from './question';

const CELLS_MAX = 1024; // columns and rows of the file's map
const DIFFERENCES = 200; // of which the file has the statistics

/** The data of a report file, as `statctl report` writes it: in a script element '<' could end it. */
export function reportText(template: string, data: unknown): string {
  const json = JSON.stringify(data).replaceAll('<', '\\u003c');
  return template.replace('@DATA@', () => json);
}

async function saveReport(route: Route): Promise<string> {
  const losses = async (run: string) => {
    try {
      return (await ask('/api/v1/scalars', { run, ...(route.steps ? { steps: route.steps } : {}) })).records.filter((record) => isLoss(record.name));
    } catch {
      return []; // too many to list: the file says that it has none
    }
  };
  try {
    const [page, report, scalars_a, scalars_b] = await Promise.all([
      fetch('/assets/report.html', { headers: tokenFields() }),
      ask('/api/v1/diff', { ...questionOf(route), heat_map_columns: CELLS_MAX, heat_map_rows: CELLS_MAX, top: DIFFERENCES }),
      losses(route.a),
      losses(route.b),
    ]);
    if (!page.ok) return 'Not saved';
    const data = { report, scalars_a, scalars_b, command: ['statctl', 'diff', ...argumentsOf(route)], made_unix_nanos: Date.now() * 1e6 };
    save(fileName([route.a, route.b], 'html'), new Blob([reportText(await page.text(), data)], { type: 'text/html' }));
    return 'Saved';
  } catch {
    return 'Not saved';
  }
}

/** The verdict as a message to somebody: the sentence, the command, and the link. */
function messageOf(report: DiffReport, statctl: string): string {
  return [report.text ? `${report.text.verdict} ${report.text.sentence}` : '', statctl, location.href].join('\n');
}

export function Share({ route, report }: { route: Route; report: DiffReport }) {
  const statctl = command('statctl', 'diff', ...argumentsOf(route));
  const picture = async () => {
    await savePhoto([route.a, route.b], [...document.querySelectorAll('main > .pair, main > .verdict, main > .picture')]);
    return 'Saved';
  };
  return (
    <>
      <Menu label="Copy" items={[copying('Verdict', messageOf(report, statctl)), ...copiesOf({ statctl, url: urlOf('/api/v1/diff', questionOf(route)) })]} />
      <Menu label="Share" items={[copying('Copy the link', location.href), ['Picture (PNG)', picture], ['Report file (HTML)', () => saveReport(route)]]} />
    </>
  );
}
