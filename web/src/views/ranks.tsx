// Whether the ranks of a run agree where they must: which parts, and when.
import { urlOf } from '../api/client';
import type { RanksReport, RunDetail } from '../api/types';
import { useQuery } from '../api/use_query';
import { Commands, Empty, Link, waiting } from '../parts/parts';
import { RunHead } from '../parts/run_head';
import type { Route } from '../route';
import { command, count, sentenceOf, shown, words } from '../text';

/** The verdict in one sentence. */
function sentence(report: RanksReport): string {
  const { verdict, compared } = report;
  if (verdict === 'inconsistent') return report.findings[0]?.text ?? report.message;
  if (verdict !== 'consistent' || !compared) return report.message;
  return `The ranks agree: ${count(compared.records)} tensors, ${compared.identical === compared.records ? 'all bit for bit equal to their replicas' : 'all within tolerance of their replicas'}.`;
}

function Answer({ report }: { report: RanksReport }) {
  const tone = report.verdict === 'consistent' ? 'good' : report.verdict === 'inconsistent' ? 'bad' : 'warn';
  return (
    <section class={`verdict ${tone}`} aria-label="Verdict">
      <p class="badge">{report.verdict}</p>
      <h2 class="sentence">{sentenceOf(shown(sentence(report), 2000))}</h2>
    </section>
  );
}

function Findings({ findings }: { findings: RanksReport['findings'] }) {
  return (
    <div class="scroll after" tabIndex={0} role="region" aria-label="Findings">
      <table class="rows wrap stack">
        <thead>
          <tr>
            <th scope="col" class="number">
              From step
            </th>
            <th scope="col">Ranks</th>
            <th scope="col">What</th>
            <th scope="col">Finding</th>
          </tr>
        </thead>
        <tbody>
          {findings.map((finding, i) => (
            <tr key={i}>
              <td class="number" data-label="From step">
                {finding.step}
              </td>
              <td data-label="Ranks">{finding.ranks.join(', ')}</td>
              <td>{words(finding.reason)}</td>
              <td class="long">{shown(finding.text, 1000)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** What each rank of a launch has recorded and lost. */
function Launch({ attempt }: { attempt: RunDetail['attempts'][number] }) {
  return (
    <>
      <h2>Launch {attempt.attempt}</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="Ranks of the newest launch">
        <table class="rows">
          <thead>
            <tr>
              <th scope="col" class="number">
                Rank
              </th>
              <th scope="col">State</th>
              <th scope="col">Host</th>
              <th scope="col" class="number">
                Steps
              </th>
              <th scope="col" class="number">
                Records
              </th>
              <th scope="col">Lost</th>
            </tr>
          </thead>
          <tbody>
            {attempt.ranks.map((rank) => (
              <tr key={rank.rank}>
                <th scope="row" class="number">
                  {rank.rank}
                </th>
                <td>
                  <span class={`dot ${rank.state}`} aria-hidden="true" />
                  {rank.state}
                </td>
                <td>
                  <bdi>{shown(rank.host, 60)}</bdi>
                </td>
                <td class="number">{count(rank.steps)}</td>
                <td class="number">{count(rank.records)}</td>
                <td>
                  {Object.keys(rank.dropped).length === 0 ? (
                    <span class="soft">nothing</span>
                  ) : (
                    Object.entries(rank.dropped)
                      .map(([cause, lost]) => `${words(cause)} ${count(lost)}`)
                      .join(', ')
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

export function RanksView({ route }: { route: Route }) {
  const run = route.a;
  const query = useQuery('/api/v1/ranks', run ? { run } : null);
  const detail = useQuery('/api/v1/show', run ? { run } : null);
  if (!run) {
    return (
      <Empty title="Pick a run">
        <p>
          Pick one in the <Link to={{ view: 'runs' }}>list of runs</Link>.
        </p>
      </Empty>
    );
  }
  const report = query.data;
  const attempt = detail.data?.attempts.at(-1);
  return (
    <>
      <RunHead route={{ ...route, b: '' }} state={detail.data?.summary?.state ?? ''} />
      {waiting(query, 'Comparing the ranks')}
      {report ? <Answer report={report} /> : null}
      {report && report.findings.length > 0 ? <Findings findings={report.findings} /> : null}
      {report?.notes.map((note) => (
        <p class="note" key={note}>
          {shown(note, 2000)}
        </p>
      ))}
      {attempt ? <Launch attempt={attempt} /> : null}
      <Commands asked={[{ statctl: command('statctl', 'ranks', run), url: urlOf('/api/v1/ranks', { run }) }]} />
    </>
  );
}
